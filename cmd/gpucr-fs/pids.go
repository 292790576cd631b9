package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/restore"
)

// reapTime is how long processes that have ended may take to be reaped: those that a dump has ended are their parent's
// business, and a restore may follow at once.
const reapTime = 5 * time.Second

// pidsFree refuses a restore whose pids somebody has: CRIU's word for it is "Can't fork for 431: File exists". Ended
// processes that are only to be reaped it waits for.
func (r *restoring) pidsFree(ctx context.Context, images string) error {
	if r.own || r.args.Has("external") || r.args.Has("join-ns") {
		return nil // the pid namespace may be another
	}
	var taken []restore.Taken
	for late := time.Now().Add(reapTime); ; time.Sleep(5 * time.Millisecond) {
		var err error
		taken, err = restore.TakenPIDs(os.DirFS(images), r.args.Has("shell-job"))
		if err != nil || len(taken) == 0 {
			return nil // what cannot be read CRIU tells of
		}
		if !allOver(taken) || time.Now().After(late) || ctx.Err() != nil {
			break
		}
	}
	const shown = 5
	var who []string
	for _, t := range taken[:min(shown, len(taken))] {
		who = append(who, t.String())
	}
	more := ""
	if n := len(taken) - shown; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return &codeError{
		exitError,
		"a restored process has the pid, session and group that it had: end those, or their parents where they " +
			"are zombies; " +
			"or restore with --own-pids",
		fmt.Errorf("pids that the checkpoint needs are taken: %s%s", strings.Join(who, ", "), more),
	}
}

// allOver tells whether all processes that have the pids have ended.
func allOver(taken []restore.Taken) bool {
	for _, t := range taken {
		if !t.Over {
			return false
		}
	}
	return true
}

// pidsAgain is called when a restore has failed with err. If that was because another process took a pid after pidsFree
// had looked, its error names the process, or asks for another restore if the pid is free again.
func (r *restoring) pidsAgain(ctx context.Context, err error, images string) error {
	task := criuSays(err, "Can't fork for") && criuSays(err, "File exists")
	thread := criuSays(err, "Unable to create a thread: -17") // -EEXIST
	if r.own || ctx.Err() != nil || !task && !thread {
		return err
	}
	if taken := r.pidsFree(ctx, images); taken != nil {
		return taken
	}
	return fmt.Errorf("a pid that the checkpoint needs was taken for a moment, %w", client.ErrAgain)
}
