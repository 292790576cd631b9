package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/restore"
)

// maxCopies bounds them: each has buffers in the daemon, a guardian and its keeper.
const maxCopies = 1024

// copied is what one of several copies came to.
type copied struct {
	Copy int `json:"copy"`
	*result
	Problem string `json:"error,omitempty"`

	err error
	r   *restoring
}

// copyArgs refuses options that copies cannot share.
func (r *restoring) copyArgs() error {
	switch {
	case r.copies < 1 || r.copies > maxCopies:
		return usage(fmt.Errorf("--copies %d is not between 1 and %d", r.copies, maxCopies), "")
	case r.copies > 1 && r.args.Work != "":
		return usage(errors.New("several copies cannot share criu's work directory"), "leave -W out")
	case r.copies > 1 && (r.args.Has("shell-job") || r.args.Has("inherit-fd")):
		return usage(errors.New("several copies cannot share a terminal or descriptors of this command"),
			"restore them one by one with --own-pids")
	}
	return nil
}

// runCopies restores several copies at once. Each succeeds or fails by itself.
func (r *restoring) runCopies(ctx context.Context, store, name string, rate int64, wait bool, file string) error {
	all := make([]copied, r.copies)
	var running sync.WaitGroup
	var turn sync.Mutex
	for i := range all {
		c := *r
		c.copy, c.turn, c.timeline.Started = i+1, &turn, time.Now()
		c.args = c.args.Copy(c.copy)
		if c.pidfile != "" {
			c.pidfile = numbered(c.pidfile, c.copy)
		}
		one := file
		if one != "" {
			one = numbered(one, c.copy)
		}
		running.Go(func() {
			st, err := c.one(ctx, store, name, rate, wait, one)
			if err == nil {
				err = lost(st)
			}
			all[i] = copied{Copy: c.copy, err: err, r: &c}
			if c.pid != 0 && (err == nil || c.runs) {
				all[i].result = &result{c.timeline, st}
			}
			if err != nil {
				all[i].Problem = oneLine(err.Error())
				r.a.note("copy %d: %v", c.copy, err)
			}
		})
	}
	running.Wait()
	if err := r.a.done(struct {
		Copies []copied `json:"copies"`
	}{all}, func(w io.Writer) { copiesText(w, all, wait) }); err != nil {
		return err
	}
	return verdictOf(all)
}

// takeTurn waits until no other copy runs criu, where they would meet: criu links deleted files that are still
// open, or have another name now, to a name beside their former one for a moment, the same for each copy.
func (r *restoring) takeTurn(images string) (done func()) {
	if r.turn == nil {
		return func() {}
	}
	if st, err := os.Stat(filepath.Join(images, "remap-fpath.img")); err != nil || st.Size() == 0 {
		return func() {}
	}
	r.turn.Lock()
	return r.turn.Unlock
}

// numbered gives a file of one copy.
func numbered(file string, copy int) string { return fmt.Sprintf("%s.%d", file, copy) }

func copiesText(w io.Writer, all []copied, wait bool) {
	for _, c := range all {
		if c.result == nil {
			continue
		}
		resume, _ := c.Timeline.At(restore.MarkResume)
		fmt.Fprintf(w, "copy %d: restored %s as process %s, runs after %v, %s\n",
			c.Copy, dash(c.Timeline.Checkpoint), c.r.who(), resume.Round(time.Millisecond), rest(c.Status, wait))
	}
}

// verdictOf gives the error of all copies: none, that of the only ones there are, or that some have failed.
func verdictOf(all []copied) error {
	var first error
	failed := 0
	for _, c := range all {
		if c.err == nil {
			continue
		}
		failed++
		if first == nil {
			first = c.err
		}
	}
	switch {
	case failed == 0:
		return nil
	case failed == len(all):
		return first
	}
	var hint string
	if c := (*codeError)(nil); errors.As(first, &c) {
		hint = c.hint
	}
	return &codeError{
		exitPartial,
		hint,
		fmt.Errorf("%d of %d copies failed, the first of them: %w", failed, len(all), first),
	}
}
