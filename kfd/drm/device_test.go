package drm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/drm"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const page = 4096

// rig is a simulated machine with an open device of its first GPU and a staging
// buffer.
type rig struct {
	t       testing.TB
	sim     *kfdsim.Sim
	gpu     uint32
	dev     *drm.Device
	mem     []byte
	staging *drm.Buffer
}

func newRig(t testing.TB, gpu kfdsim.GPU, opts drm.Options, staging int) *rig {
	t.Helper()
	sim, err := kfdsim.Start(kfdsim.Options{Dir: t.TempDir(), GPUs: []kfdsim.GPU{gpu}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Errorf("close simulator: %v", err)
		}
	})
	r := &rig{t: t, sim: sim, gpu: sim.Options().GPUs[0].ID}
	r.dev = r.open(opts)
	r.mem, err = unix.Mmap(-1, 0, staging, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(r.mem) })
	t.Cleanup(func() {
		if err := r.dev.Close(); err != nil {
			t.Errorf("close device: %v", err)
		}
	})
	if r.staging, err = r.dev.Register(r.mem); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) open(opts drm.Options) *drm.Device {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.sim.DevDir(),
		fmt.Sprintf("dri/renderD%d", r.sim.Options().GPUs[0].RenderMinor)), os.O_RDWR, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	d, err := drm.Open(f, opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// bo makes a BO, filled with what a stale one may hold, and imports it.
func (r *rig) bo(size uint64) (*drm.Buffer, []byte, *os.File) {
	r.t.Helper()
	f, mem, err := r.sim.NewDmabuf(r.gpu, size, false)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { f.Close() })
	for i := range mem {
		mem[i] = 0xa5
	}
	b, err := r.dev.Import(f, size)
	if err != nil {
		r.t.Fatal(err)
	}
	return b, mem, f
}

func (r *rig) run(ops ...drm.Op) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f, err := r.dev.Submit(ctx, ops...)
	if err != nil {
		return err
	}
	return f.Wait(ctx)
}

func (r *rig) noErrors() {
	r.t.Helper()
	if errs := r.sim.State().Errors; len(errs) > 0 {
		r.t.Errorf("the gpu ran into %+v", errs)
	}
}

// Every generation of packets moves what it should, both ways, and not a byte
// beside it.
func TestCopyAndFill(t *testing.T) {
	for _, model := range []string{"polaris", "mi50", "navi21", "navi31", "navi48"} {
		t.Run(model, func(t *testing.T) { copyAndFill(t, kfdsim.GPU{Model: model}, drm.Options{Kind: drm.SDMA}) })
	}
	t.Run("mapping", func(t *testing.T) { copyAndFill(t, kfdsim.GPU{}, drm.Options{Kind: drm.Mapping}) })
}

func copyAndFill(t *testing.T, gpu kfdsim.GPU, opts drm.Options) {
	const size = 10 << 20
	r := newRig(t, gpu, opts, size)
	if k := r.dev.Kind(); k != opts.Kind {
		t.Fatalf("engine is %v", k)
	}
	b, vram, _ := r.bo(size)
	rand.NewChaCha8([32]byte{7}).Read(r.mem)
	staged := bytes.Clone(r.mem)
	for _, n := range []uint64{4, page, page + 12, 0x1ffffc, 0x3fffe0, 0x3fffe4, 0x400000, 0x400004, 9<<20 + 4} {
		want := bytes.Clone(vram)
		copy(want[page:], staged[8:8+n])
		if err := r.run(drm.Op{Dst: b, DstOff: page, Src: r.staging, SrcOff: 8, N: n}); err != nil {
			t.Fatalf("copy of %#x bytes: %v", n, err)
		}
		if !bytes.Equal(vram, want) {
			t.Fatalf("copy of %#x bytes left other bytes than it should", n)
		}
		clear(want[page : page+n])
		if err := r.run(drm.Op{Dst: b, DstOff: page, N: n}); err != nil {
			t.Fatalf("fill of %#x bytes: %v", n, err)
		}
		if !bytes.Equal(vram, want) {
			t.Fatalf("fill of %#x bytes left other bytes than it should", n)
		}
	}
	rand.NewChaCha8([32]byte{8}).Read(vram)
	if err := r.run(drm.Op{Dst: r.staging, Src: b, N: size}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(r.mem, vram) {
		t.Error("vram read back is not what it holds")
	}
	if err := r.dev.Err(); err != nil {
		t.Error(err)
	}
	r.noErrors()
}

// What would reach beyond a buffer is refused before the GPU sees it.
func TestOverrunIsRefused(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, drm.Options{}, 16*page)
	b, vram, f := r.bo(4 * page)
	before := bytes.Clone(vram)
	for _, op := range []drm.Op{
		{Dst: b, Src: r.staging, N: 4*page + 1},
		{Dst: b, DstOff: 1, Src: r.staging, N: 4 * page},
		{Dst: b, DstOff: 1 << 63, Src: r.staging, N: 1 << 63},
		{Dst: b, DstOff: ^uint64(0), Src: r.staging, N: 2},
		{Dst: r.staging, Src: b, SrcOff: page, N: 4 * page},
		{Dst: b, DstOff: 4 * page, N: 4},
		{Dst: b, DstOff: 2, N: 8},
		{Dst: b, N: 6},
		{Dst: b, Src: r.staging},
		{Src: r.staging, N: page},
	} {
		if err := r.run(op); err == nil {
			t.Errorf("%+v was carried out", op)
		}
	}
	if _, err := r.dev.Submit(context.Background()); err == nil {
		t.Error("submission of nothing was taken")
	}
	if _, err := r.dev.Import(f, 5*page); err == nil || !strings.Contains(err.Error(), "dma-buf has 16384 bytes") {
		t.Errorf("import of more than there is: %v", err)
	}
	if _, err := r.dev.Register(r.mem[:page+1]); err == nil {
		t.Error("half a page was registered")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.run(drm.Op{Dst: b, N: 4}); err == nil {
		t.Error("closed buffer was filled")
	}
	if !bytes.Equal(vram, before) {
		t.Error("a refused copy changed vram")
	}
	r.noErrors()
}

// Submissions of many goroutines keep apart, more of them than there are slots.
func TestManySubmissions(t *testing.T) {
	const each, users = 64 << 10, 24
	r := newRig(t, kfdsim.GPU{}, drm.Options{}, users*each)
	b, vram, _ := r.bo(users * each)
	rand.NewChaCha8([32]byte{9}).Read(r.mem)
	var wg sync.WaitGroup
	for u := range uint64(users) {
		wg.Go(func() {
			for i := range uint64(16) {
				off := u*each + i*page
				if err := r.run(drm.Op{Dst: b, DstOff: off, Src: r.staging, SrcOff: off, N: page}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if !bytes.Equal(vram, r.mem) {
		t.Error("vram differs from what was copied to it")
	}
	if s := r.dev.Stats(); s.Jobs != users*16 || s.Bytes != users*each || s.Busy <= 0 {
		t.Errorf("account %+v", s)
	}
	var ops []drm.Op
	for i := range uint64(700) { // more packets than an IB holds
		ops = append(ops, drm.Op{Dst: b, DstOff: i * 1024, N: 512})
	}
	if err := r.run(ops...); err != nil {
		t.Fatal(err)
	}
	for i := range 700 {
		clear(r.mem[i*1024:][:512])
	}
	if !bytes.Equal(vram, r.mem) {
		t.Error("fills of one submission differ")
	}
	r.noErrors()
}

func TestTransientErrorsAreRepeated(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, drm.Options{}, 16*page)
	for _, req := range []abi.Request{abi.DRMIocPrimeFDToHandle, abi.AMDGPUIocGEMVA, abi.AMDGPUIocCS,
		abi.AMDGPUIocWaitCS, abi.DRMIocGEMClose} {
		for _, errno := range []syscall.Errno{syscall.EBUSY, syscall.EAGAIN, syscall.EINTR} {
			if err := r.sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: req.String(), Errno: errno,
				Count: 3}); err != nil {
				t.Fatal(err)
			}
			b, vram, _ := r.bo(page)
			if err := r.run(drm.Op{Dst: b, N: page}); err != nil {
				t.Errorf("%v: %v: %v", req, errno, err)
			}
			if !bytes.Equal(vram, make([]byte, page)) {
				t.Errorf("%v: %v: vram was not filled", req, errno)
			}
			if err := b.Close(); err != nil {
				t.Errorf("%v: %v: %v", req, errno, err)
			}
			if n := r.sim.ClearFaults(); n != 3 {
				t.Errorf("%v: %v: struck %d times", req, errno, n)
			}
		}
	}
	impatient := r.open(drm.Options{Timeout: 20 * time.Millisecond})
	defer impatient.Close()
	b, _, f := r.bo(page)
	defer b.Close()
	b2, err := impatient.Import(f, page)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.AMDGPUIocCS.String(),
		Errno: syscall.EBUSY}); err != nil {
		t.Fatal(err)
	}
	if _, err := impatient.Submit(context.Background(), drm.Op{Dst: b2, N: page}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("busy for good: %v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := errors.New("no longer wanted")
	cancel(stop)
	if _, err := r.dev.Submit(ctx, drm.Op{Dst: b, N: page}); !errors.Is(err, stop) {
		t.Errorf("canceled: %v", err)
	}
	r.sim.ClearFaults()
	r.noErrors()
}

// A submission that hangs is an error, and so is everything after it.
func TestHang(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, drm.Options{}, 16*page)
	b, _, _ := r.bo(page)
	if err := r.sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultDMA, Count: 1}); err != nil {
		t.Fatal(err)
	}
	if err := r.run(drm.Op{Dst: b, N: page}); !errors.Is(err, syscall.ETIME) {
		t.Fatalf("hung submission: %v", err)
	}
	if err := r.run(drm.Op{Dst: b, N: page}); err == nil {
		t.Error("device goes on after a hang")
	}
	if r.dev.Err() == nil {
		t.Error("device does not tell of the hang")
	}
}

// A mapping that the driver lost is an error, never a silent success.
func TestLostMapping(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, drm.Options{}, 16*page)
	if err := r.sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultMapping, Count: 1}); err != nil {
		t.Fatal(err)
	}
	b, _, _ := r.bo(page)
	if err := r.run(drm.Op{Dst: b, Src: r.staging, N: page}); err == nil {
		t.Error("copy through a mapping that is not there succeeded")
	}
	b.Close() // its unmap fails, there being nothing to unmap
}

// A wait ends when its context does, though the GPU goes on.
func TestWaitIsCanceled(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, drm.Options{}, 16*page)
	b, _, _ := r.bo(page)
	if err := r.sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultStall, Delay: 500 * time.Millisecond, Count: 1}); err != nil {
		t.Fatal(err)
	}
	f, err := r.dev.Submit(context.Background(), drm.Op{Dst: b, N: page})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
}

// The kernel gives a BO that is imported twice one handle; either import may be
// closed first.
func TestSameBOTwice(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, drm.Options{}, 16*page)
	a, vram, f := r.bo(2 * page)
	b, err := r.dev.Import(f, 2*page)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.run(drm.Op{Dst: b, N: 2 * page}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(vram, make([]byte, 2*page)) {
		t.Error("vram was not filled")
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	r.noErrors()
}

func TestNotADevice(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := drm.Open(f, drm.Options{}); err == nil {
		t.Error("/dev/null was taken for a render node")
	}
}

// What was imported goes with the device, without a request for each; the open that the device was made of stays.
func TestCloseGivesUpAll(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, drm.Options{}, 16*page)
	f, err := os.OpenFile(filepath.Join(r.sim.DevDir(), "dri",
		fmt.Sprintf("renderD%d", r.sim.Options().GPUs[0].RenderMinor)), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf, _, err := r.sim.NewDmabuf(r.gpu, page, false)
	if err != nil {
		t.Fatal(err)
	}
	used := r.sim.State().GPUs[0].VRAMUsed
	for range 2 { // the second finds the first's addresses free
		d, err := drm.Open(f, drm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Import(buf, page); err != nil {
			t.Fatal(err)
		}
		if err := r.sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.DRMIocGEMClose.String(),
			Errno: syscall.EINVAL}); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if n := r.sim.ClearFaults(); n != 0 {
			t.Errorf("closing took %d requests to close a handle", n)
		}
	}
	buf.Close()
	for late := time.Now().Add(time.Minute); r.sim.State().GPUs[0].VRAMUsed != used-page; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("a device that is closed holds memory: %d bytes are used", r.sim.State().GPUs[0].VRAMUsed)
		}
	}
}
