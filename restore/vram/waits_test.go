package vram

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// lacking is a source whose first reads fail.
type lacking struct {
	Source
	errno syscall.Errno
	left  atomic.Int64
}

type lackingFile struct {
	File
	l *lacking
}

func (l *lacking) Open(name string) (File, error) {
	f, err := l.Source.Open(name)
	return lackingFile{f, l}, err
}

func (f lackingFile) ReadAt(p []byte, off int64) (int, error) {
	if f.l.left.Add(-1) >= 0 {
		return 0, f.l.errno
	}
	return f.File.ReadAt(p, off)
}

// What is waited for is told, with the file's name. An error is told by Fill alone.
func TestWaitsAreTold(t *testing.T) {
	for _, tc := range []struct {
		errno syscall.Errno
		count int64
		fails bool
	}{{syscall.EMFILE, 3, false}, {syscall.EINVAL, 1 << 40, true}} {
		r := newRig(t, kfdsim.GPU{})
		r.add(1, 0, content(1, 3*mib))
		src := &lacking{Source: r.plain(), errno: tc.errno}
		src.left.Store(tc.count)
		var told bytes.Buffer
		log := slog.New(slog.NewTextHandler(&told, nil))
		if _, err := Fill(within(t), src, r.plan, Options{Verify: VerifyNone, Logger: log}); (err != nil) != tc.fails {
			t.Errorf("%v: %v", tc.errno, err)
		}
		waits := strings.Contains(told.String(), "trying again") && strings.Contains(told.String(), r.plan.BOs[0].File)
		if waits == tc.fails || strings.Contains(told.String(), "level=ERROR") {
			t.Errorf("%v: told %q", tc.errno, told.String())
		}
	}
}
