package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpucr/gpucr-fs/restore/uffd"
)

const checkpointName = "process"

// way is a way to restore.
type way struct {
	name string
	// source is what it reads.
	source func(*subject) string
	// prepare starts what has to be there before.
	prepare func(b *bench, s *subject, work string) (restoring, error)
}

// restoring is one restore.
type restoring interface {
	// restore tells when the process ran.
	restore() (resumed time.Time, err error)
	// resident waits until all memory is there and tells when that was. The zero time: since the process runs.
	resident() (time.Time, error)
	// peakMB is the largest resident memory of what served, 0 where nothing does.
	peakMB() float64
	done() error
}

const (
	wayEager   = "criu"
	wayLazy    = "criu lazy-pages"
	wayFirst   = "gpucr-fs first"
	wayProfile = "gpucr-fs profile"
)

var ways = []way{
	{wayEager, images, prepareEager},
	{wayLazy, images, prepareLazy},
	{wayFirst, store, func(b *bench, s *subject, work string) (restoring, error) { return prepareOurs(b, s, true) }},
	{wayProfile, store, func(b *bench, s *subject, work string) (restoring, error) { return prepareOurs(b, s, false) }},
}

func wayNames() (out []string) {
	for _, w := range ways {
		out = append(out, w.name)
	}
	return out
}

func (b *bench) takes(name string) bool { return slices.Contains(b.ways, name) }

func images(s *subject) string { return s.images }
func store(s *subject) string  { return s.store }

// eager is criu restore, as it is.
type eager struct {
	b    *bench
	s    *subject
	work string
}

func prepareEager(b *bench, s *subject, work string) (restoring, error) {
	return &eager{b, s, work}, nil
}

func (e *eager) restore() (time.Time, error) {
	err := e.b.command(e.b.criu, "restore", "-d", "-D", e.s.images, "-W", e.work)
	return time.Now(), err
}

func (e *eager) resident() (time.Time, error) { return time.Time{}, nil }
func (e *eager) peakMB() float64              { return 0 }
func (e *eager) done() error                  { return nil }

// lazy is criu restore --lazy-pages with criu lazy-pages.
type lazy struct {
	eager
	server *exec.Cmd
	ended  chan error
	at     time.Time // when it ended
}

func prepareLazy(b *bench, s *subject, work string) (restoring, error) {
	l := &lazy{eager: eager{b, s, work}, ended: make(chan error, 1)}
	l.server = exec.CommandContext(b.ctx, b.criu, "lazy-pages", "-D", s.images, "-W", work, "-o",
		filepath.Join(work, "lazy-pages.log"))
	if err := l.server.Start(); err != nil {
		return nil, err
	}
	go func() {
		err := l.server.Wait()
		l.at = time.Now()
		l.ended <- err
	}()
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		if _, err := os.Lstat(filepath.Join(work, uffd.SocketName)); err == nil {
			return l, nil
		}
		if time.Now().After(end) {
			return nil, errors.Join(errors.New("criu lazy-pages does not listen"), l.done())
		}
	}
}

func (l *lazy) restore() (time.Time, error) {
	err := l.b.command(l.b.criu, "restore", "-d", "--lazy-pages", "-D", l.s.images, "-W", l.work)
	return time.Now(), err
}

func (l *lazy) resident() (time.Time, error) {
	select {
	case err := <-l.ended:
		l.ended <- nil
		if err != nil {
			return time.Time{}, fmt.Errorf("criu lazy-pages: %w", err)
		}
		return l.at, nil
	case <-time.After(timeout):
		return time.Time{}, fmt.Errorf("criu lazy-pages still serves after %v", timeout)
	}
}

func (l *lazy) done() error {
	l.server.Process.Kill()
	<-l.ended
	return nil
}
