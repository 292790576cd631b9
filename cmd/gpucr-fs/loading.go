package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/pidns"
)

// loaded is a CRIU that waits to be asked, and the pid namespace it is in, nil for ours; or why there is none.
type loaded struct {
	criu *restore.CRIU
	own  *pidns.Namespace
	err  error
}

// loading is where one comes, once; nil when it was taken.
type loading struct {
	one       <-chan loaded
	namespace func() uint64 // waits for the number of its pid namespace; 0 for ours, or where there is none
}

// load starts CRIU.
func (r *restoring) load() *loading {
	ch, number := make(chan loaded, 1), make(chan uint64, 1)
	go func() {
		var l loaded
		var n uint64
		if r.own {
			l.own, l.err = pidns.New()
		}
		if l.own != nil {
			n, l.err = l.own.Number()
		}
		number <- n
		if l.err == nil {
			l.err = l.start(r)
		} else if l.own != nil {
			l.err = errors.Join(l.err, l.end())
		}
		ch <- l
	}()
	return &loading{ch, sync.OnceValue(func() uint64 { return <-number })}
}

// start starts CRIU in l's namespace.
func (l *loaded) start(r *restoring) error {
	var within restore.Within
	if l.own != nil {
		within = l.own
	}
	c, err := r.criu.start(r.a, r.args, within, r.events.env()...)
	if err != nil {
		return errors.Join(err, l.end())
	}
	l.criu = c
	return nil
}

// end ends CRIU, and all that is in a namespace of its own that was not released.
func (l *loaded) end() (err error) {
	if l.criu != nil {
		err = l.criu.Close()
	}
	if l.own != nil {
		err = errors.Join(err, l.own.End())
	}
	return err
}

// drop ends a CRIU that was not needed.
func (l *loading) drop() {
	if l == nil {
		return
	}
	x := <-l.one
	x.end()
}

// attempt restores once: when it fails nothing is left.
func (r *restoring) attempt(ctx context.Context, l loaded, p talk.Prepared, log string) (err error) {
	if l.err != nil {
		return l.err
	}
	defer func() { r.runs = err == nil }()
	r.events.begin()
	err = l.makeWay(r, p.Images)
	if err == nil {
		err = r.restore(ctx, l.criu, p, log)
	}
	if err != nil {
		err = r.events.cause(ctx, errors.Join(err, l.end()))
		return r.freePorts(ctx, r.pidsAgain(ctx, err, p.Images), p.Images)
	}
	if l.own == nil {
		return l.end()
	}
	// CRIU is of the namespace too, and goes first.
	if err = errors.Join(l.criu.Close(), writePID(r.pidfile, r.pid)); err != nil {
		return errors.Join(err, l.end())
	}
	return l.own.Release(r.inside)
}

// makeWay moves CRIU in a namespace of its own from numbers that the images need.
func (l *loaded) makeWay(r *restoring, images string) error {
	if l.own == nil {
		return nil
	}
	n, err := criuimg.LoadNumbers(os.DirFS(images))
	if err != nil {
		return nil // what cannot be read CRIU tells of
	}
	last, here := l.own.Clear(append(n.Tasks, n.Others...))
	if here {
		return nil
	}
	if err := l.own.Place(last); err != nil {
		return err
	}
	// Closed without work it would take the namespace along.
	former := l.criu
	if err := l.start(r); err != nil {
		return err
	}
	return former.Discard()
}

// writePID writes a pidfile as CRIU does: one that is there is somebody else's.
func writePID(name string, pid int) error {
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write the pidfile: %w", err)
	}
	_, err = fmt.Fprint(f, pid)
	return errors.Join(err, f.Close())
}

// ownArgs takes from CRIU's options what a restore in a pid namespace of its own does by itself, and refuses
// those that contradict it.
func ownArgs(args *restore.Args) (pidfile string, err error) {
	for _, v := range args.Values("join-ns") {
		if strings.HasPrefix(v, "pid:") {
			return "", usage(errors.New("--own-pids and criu's --join-ns pid cannot both be had"), "")
		}
	}
	return args.Take("pidfile"), nil
}

// who names the first process.
func (r *restoring) who() string {
	if r.own {
		return fmt.Sprintf("%d (%d inside)", r.pid, r.inside)
	}
	return fmt.Sprint(r.pid)
}
