package plugin

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// A driver that says "again" is asked again, and not for ever: the whole tree
// stands meanwhile.
func TestDriverPutsOff(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	app := b.StartApp(1, "--interval", "1", "--bos", "8", "--max-bo", "65536")
	pid := strconv.Itoa(app.PID)
	put := func(op string, errno syscall.Errno, count int) {
		t.Helper()
		if err := b.Sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.KFDIocCRIUOp.String() + " " + op,
			Errno: errno, Count: count}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		op    string
		errno syscall.Errno
		says  string
	}{
		{"PROCESS_INFO", syscall.EAGAIN, "PROCESS_INFO: the driver puts it off for ever"},
		{"CHECKPOINT", syscall.EAGAIN, "CHECKPOINT: the driver puts it off for ever"},
		{"CHECKPOINT", syscall.EBUSY, "CHECKPOINT: Device or resource busy"},
	} {
		put(tc.op, tc.errno, 0)
		err := b.criu("dump", "-t", pid)
		if struck := b.Sim.ClearFaults(); err == nil || !strings.Contains(b.criuLog("dump"), tc.says) {
			t.Errorf("%s put off %d times: %v, without %q", tc.op, struck, err, tc.says)
		} else if tc.errno == syscall.EAGAIN && struck < 20 {
			t.Errorf("%s was asked for %d times only", tc.op, struck)
		}
		b.noHelpers()
		app.WaitRounds(1)
	}
	put("PROCESS_INFO", syscall.EAGAIN, 3)
	put("CHECKPOINT", syscall.EAGAIN, 12)
	b.dump(app)
	b.noHelpers()
	if struck := b.Sim.ClearFaults(); struck != 15 {
		t.Errorf("put off %d times", struck)
	}
	b.restore()
	app.WaitRounds(1)
	app.Kill()
}

// A signal that interrupts RESTORE: where the driver has done nothing yet it is asked again; later it refuses to, and
// the restore fails with a word and leaves nothing.
func TestRestoreInterrupted(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	app := b.StartApp(1, "--interval", "1", "--bos", "8", "--max-bo", "65536")
	b.dump(app)
	interrupt := func(op string) {
		t.Helper()
		if err := b.Sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.KFDIocCRIUOp.String() + " " + op,
			Errno: syscall.EINTR, Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	interrupt("RESTORE bound")
	err := b.criu("restore", "-d")
	says := "objects: Invalid argument (asked again after an interruption"
	if err == nil || !strings.Contains(b.criuLog("restore"), says) {
		t.Errorf("%v, without %q", err, says)
	}
	b.noHelpers()
	app.WaitGone()
	b.WaitVRAMFree()
	if n := b.Sim.ClearFaults(); n != 1 {
		t.Errorf("interrupted %d times", n)
	}
	interrupt("RESTORE")
	b.restore()
	app.WaitRounds(1)
	b.noHelpers()
	b.noGPUErrors()
	if n := b.Sim.ClearFaults(); n != 1 {
		t.Errorf("interrupted %d times", n)
	}
	app.Kill()
}

// The driver takes queues off when it needs VRAM. That VRAM is on its way changes nothing about it: they do not run
// before it is there, and do afterwards.
func TestPressureWhileVRAMComes(t *testing.T) {
	b := lazy(t, kfdsim.Options{GPUs: []kfdsim.GPU{{DMARate: 100e6}}})
	app := b.StartApp(1, "--interval", "1", "--bos", "20", "--max-bo", "262144", "--big-bo", strconv.Itoa(64<<20))
	b.dump(app)
	b.restore()
	for n, _ := b.missing(0); n > 0; n, _ = b.missing(0) {
		if err := b.Sim.Evict(app.PID, 20*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	b.ready()
	app.WaitRounds(1)
	b.noHelpers()
	b.noGPUErrors()
	app.Kill()
}
