package vram

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// full is a sink that takes some bytes, and then no more.
type full struct {
	room   int
	create error
	close  error
	stop   context.CancelFunc
}

var errFull = errors.New("full")

func (f *full) Create(string, int64) (io.WriteCloser, error) {
	return &fullFile{f, f.room}, f.create
}

type fullFile struct {
	*full
	left int
}

func (f *fullFile) Write(p []byte) (int, error) {
	if f.stop != nil {
		f.stop()
	}
	if f.left -= len(p); f.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func (f *fullFile) Close() error { return f.full.close }

func TestReadFaults(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
	r.addAll()
	for name, f := range map[string]*full{
		"at the header": {}, "soon": {room: 8 + page}, "later": {room: 3 * mib},
		"at create": {create: errFull}, "at close": {room: 1 << 30, close: errFull},
	} {
		_, err := Read(within(t), r.plan, f, Options{})
		if r.named(err); !errors.Is(err, errFull) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, f := range []kfdsim.Fault{
		{Kind: kfdsim.FaultDMA, After: 7, Count: 1},
		{Kind: kfdsim.FaultIoctl, Request: abi.DRMIocPrimeFDToHandle.String(), Errno: syscall.EINVAL, After: 9,
			Count: 1},
		{Kind: kfdsim.FaultMapping, After: 6, Count: 1},
	} {
		r.inject(f)
		_, err := Read(within(t), r.plan, DirSink(r.dir), Options{})
		r.named(err)
		if n := r.sim.ClearFaults(); n != 1 {
			t.Errorf("%+v struck %d times", f, n)
		}
	}
	ctx, cancel := context.WithCancel(within(t))
	if _, err := Read(ctx, r.plan, &full{room: 1 << 30, stop: cancel}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	r.plan.BOs[3].Off += page
	if _, err := Read(within(t), r.plan, DirSink(r.dir), Options{}); err == nil ||
		!strings.Contains(err.Error(), "its place in") {
		t.Errorf("gap in a file: %v", err)
	}
}
