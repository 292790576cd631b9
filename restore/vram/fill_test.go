package vram

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/drm"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/prefetch"
)

// addAll makes two processes with BOs of all sorts on every GPU.
func (r *rig) addAll() {
	seed := byte(1)
	for _, pid := range []int{101, 202} {
		for gpu := range r.plan.Nodes {
			for _, b := range [][]byte{
				content(seed, page), content(seed+1, 3*page), content(seed+2, 64*kib+page),
				make([]byte, page), make([]byte, mib+page),
				content(seed+3, 2*mib), content(seed+4, 2*mib+page, mib, mib+300*kib),
				content(seed+5, 5*mib+3*page, 0, 2*mib, 3*mib+7*page, 4*mib, 5*mib, 6*mib),
				content(seed+6, 300*kib, page, 299*kib),
			} {
				r.add(pid, gpu, b)
			}
			seed += 10
		}
	}
}

func (r *rig) total() (n uint64) {
	for _, b := range r.want {
		n += uint64(len(b))
	}
	return n
}

func TestFill(t *testing.T) {
	for _, tc := range []struct {
		name  string
		opts  Options
		store bool
		gpus  []kfdsim.GPU
	}{
		{"directory", Options{Verify: VerifyAll}, false, []kfdsim.GPU{{}, {}}},
		{"store", Options{Verify: VerifyAll}, true, []kfdsim.GPU{{}, {}}},
		{"three generations", Options{}, true, []kfdsim.GPU{{Model: "polaris"}, {Model: "navi31"}, {Model: "navi48"}}},
		{"little staging", Options{Staging: MinStaging, Verify: VerifyAll}, false, []kfdsim.GPU{{}, {}}},
		{"kfd max buffer size", Options{MaxBuffer: 1 << 20}, true, []kfdsim.GPU{{}}},
		{"kfd max buffer size of 64 KiB", Options{MaxBuffer: 64 * kib, Verify: VerifyAll}, true, []kfdsim.GPU{{}, {}}},
		{"kfd max buffer size of a page", Options{MaxBuffer: page, Verify: VerifyAll}, false, []kfdsim.GPU{{}, {}}},
		{"mapping", Options{Engine: drm.Mapping, Verify: VerifyAll}, true, []kfdsim.GPU{{}, {}}},
		{"unverified", Options{Verify: VerifyNone}, true, []kfdsim.GPU{{}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, tc.gpus...)
			r.addAll()
			src := r.plain()
			if tc.store {
				src, _ = r.store()
			}
			var mu sync.Mutex
			var last, calls uint64
			tc.opts.Progress = func(done, total uint64) {
				if !mu.TryLock() {
					t.Error("progress is told twice at once")
					return
				}
				defer mu.Unlock()
				calls++
				if done < last || total < r.total() || total > 2*r.total() || done > total {
					t.Errorf("progress %d of %d after %d", done, total, last)
				}
				last = done
			}
			rep, err := Fill(within(t), src, r.plan, tc.opts)
			if err != nil {
				t.Fatal(err)
			}
			r.filled()
			if last != rep.Bytes+rep.Verified {
				t.Errorf("progress ended at %d", last)
			}
			if rep.Bytes != r.total() || rep.BOs != len(r.plan.BOs) || len(rep.Nodes) != len(tc.gpus) || calls == 0 {
				t.Errorf("%d calls of progress, report %+v", calls, rep)
			}
			if err := tc.opts.Validate(); err != nil || rep.PeakStaging > tc.opts.Staging ||
				rep.Staging > tc.opts.Staging || rep.PeakStaging == 0 {
				t.Errorf("staging peaked at %d of %d bytes, %v", rep.PeakStaging, tc.opts.Staging, err)
			}
			if tc.store && rep.Zero == 0 {
				t.Error("no zeros were filled")
			}
			switch {
			case tc.opts.Verify == VerifyAll && rep.Verified != r.total(), tc.opts.Verify == VerifySample &&
				rep.Verified == 0,
				tc.opts.Verify == VerifyNone && rep.Verified != 0:
				t.Errorf("verified %d bytes", rep.Verified)
			}
			for _, n := range rep.Nodes {
				if n.Jobs == 0 || n.Bytes == 0 || tc.opts.Engine != drm.Mapping && n.Engine != drm.SDMA {
					t.Errorf("%+v", n)
				}
			}
		})
	}
}

// Nothing to do is done, and GPUs that no BO is on are left alone.
func TestFillNothing(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
	rep, err := Fill(within(t), Dir(r.dir), Plan{}, Options{})
	if err != nil || rep.Bytes != 0 {
		t.Errorf("%+v, %v", rep, err)
	}
	r.add(1, 1, content(1, page))
	r.plan.Nodes[0] = Node{Name: "not there"}
	if _, err := Fill(within(t), r.plain(), r.plan, Options{}); err != nil {
		t.Error(err)
	}
	r.filled()
}

// A BO that two processes share is filled through both.
func TestSharedBO(t *testing.T) {
	r := newRig(t, kfdsim.GPU{})
	r.add(1, 0, content(1, 3*mib))
	r.add(2, 0, content(1, 3*mib))
	r.plan.BOs[1].Dmabuf = r.plan.BOs[0].Dmabuf
	r.vram[1] = r.vram[0]
	if _, err := Fill(within(t), r.plain(), r.plan, Options{Verify: VerifyAll}); err != nil {
		t.Fatal(err)
	}
	r.filled()
}

var big = flag.Bool("server.big", false, "fill a 4 GiB buffer object, which takes as much memory")

// A submission costs the driver a look at each page of the memory that it lists: staging memory is listed a slot at a
// time.
func TestListsLittle(t *testing.T) {
	const size = 32 * mib
	r := newRig(t, kfdsim.GPU{})
	id := r.sim.Options().GPUs[0].ID
	f, _, err := r.sim.NewDmabuf(id, size, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.plan.BOs = []BO{{PID: 1, GPU: id, Kind: "vram", Size: size, Dmabuf: f, File: "some.img", Off: 8}}
	image := append(make([]byte, 8), content(5, size)...)
	if err := os.WriteFile(filepath.Join(r.dir, "some.img"), image, 0o600); err != nil {
		t.Fatal(err)
	}
	r.sim.DMAStats(true)
	if _, err := Fill(within(t), Dir(r.dir), r.plan, Options{Verify: VerifyNone}); err != nil {
		t.Fatal(err)
	}
	if n := r.sim.DMAStats(false)[0].Lookups; n > size/page*3/2 {
		t.Errorf("%d pages were looked up for %d", n, size/page)
	}
}

// However large a BO is, staging memory is not.
func TestStagingIsBounded(t *testing.T) {
	size, bound := uint64(256*mib), int64(4*mib)
	if *big {
		size, bound = 4<<30, DefaultStaging
	}
	r := newRig(t, kfdsim.GPU{VRAM: 8 << 30})
	id := r.sim.Options().GPUs[0].ID
	f, vram, err := r.sim.NewDmabuf(id, size, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.plan.BOs = []BO{{PID: 1, GPU: id, Kind: "vram", Size: size, Dmabuf: f, File: "big.img", Off: 8}}
	img, err := os.Create(filepath.Join(r.dir, "big.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	// Mostly holes, so that it is quick.
	if err := img.Truncate(8 + int64(size)); err != nil {
		t.Fatal(err)
	}
	data := content(3, 32*mib)
	at := []int64{0, int64(size) / 2, int64(size) - int64(len(data))}
	for _, off := range at {
		if _, err := img.WriteAt(data, 8+off); err != nil {
			t.Fatal(err)
		}
		vram[off] = 1
	}
	vram[size/2-1] = 1
	rep, err := Fill(within(t), Dir(r.dir), r.plan, Options{Staging: bound})
	if err != nil {
		t.Fatal(err)
	}
	if rep.PeakStaging > bound || rep.PeakStaging == 0 {
		t.Errorf("staging peaked at %d bytes of %d", rep.PeakStaging, bound)
	}
	if rep.Bytes != size || rep.Zero < size/2 {
		t.Errorf("%d bytes, %d of them zero", rep.Bytes, rep.Zero)
	}
	for _, off := range at {
		if !bytes.Equal(vram[off:off+int64(len(data))], data) {
			t.Errorf("contents at %#x differ", off)
		}
	}
	if vram[size/2-1] != 0 {
		t.Error("what was stale is still there")
	}
	t.Logf("%d MiB in %v, dma busy %.0f %%, staging %d KiB", size/mib, rep.Duration, 100*rep.BusyShare(),
		rep.PeakStaging/kib)
}

// What the profile names comes first.
func TestProfileOrders(t *testing.T) {
	r := newRig(t, kfdsim.GPU{})
	for i := range 4 {
		r.add(1, 0, content(byte(i+1), 8*mib))
	}
	src := &listing{Source: r.plain()}
	name := r.plan.BOs[0].File
	p := &prefetch.Profile{Files: []string{"pages-1.img", name}, Touches: []prefetch.Range{
		{File: 0, Off: 0, Len: page}, {File: 1, Off: 24 * mib, Len: 2 * mib}, {File: 1, Off: 16 * mib, Len: 2 * mib}}}
	if _, err := Fill(within(t), src, r.plan, Options{Profile: p, Workers: 1, Verify: VerifyNone}); err != nil {
		t.Fatal(err)
	}
	r.filled()
	// The hot ranges begin within a page of the file, 8 bytes into it.
	for _, off := range src.reads[:2] {
		if off < 16*mib-page || off >= 18*mib && off < 24*mib-page || off >= 26*mib {
			t.Errorf("first reads at %v", src.reads[:4])
		}
	}
}

// A profile's touch stands for what follows it, too: zeros there are filled
// once, not twice.
func TestProfileBesideZeros(t *testing.T) {
	r := newRig(t, kfdsim.GPU{})
	r.add(1, 0, content(1, 3*mib, mib, 2*mib))
	src, _ := r.store()
	p := &prefetch.Profile{Files: []string{r.plan.BOs[0].File},
		Touches: []prefetch.Range{{Off: mib - page, Len: page}, {Off: mib + 8*page, Len: page}}}
	rep, err := Fill(within(t), src, r.plan, Options{Profile: p, Verify: VerifyAll})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Zero == 0 {
		t.Error("no zeros were filled")
	}
	r.filled()
}

// listing notes where a source is read.
type listing struct {
	Source
	mu    sync.Mutex
	reads []int64
}

type listedFile struct {
	File
	l *listing
}

func (l *listing) Open(name string) (File, error) {
	f, err := l.Source.Open(name)
	return listedFile{f, l}, err
}

func (f listedFile) ReadAt(p []byte, off int64) (int, error) {
	f.l.mu.Lock()
	f.l.reads = append(f.l.reads, off)
	f.l.mu.Unlock()
	return f.File.ReadAt(p, off)
}

// Requests that fail for a moment do not show.
func TestBusyIsRepeated(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
	r.addAll()
	src := r.plain()
	for _, req := range []abi.Request{abi.AMDGPUIocCS, abi.AMDGPUIocWaitCS, abi.DRMIocPrimeFDToHandle,
		abi.AMDGPUIocGEMVA} {
		for _, errno := range []syscall.Errno{syscall.EBUSY, syscall.EAGAIN, syscall.EINTR} {
			r.inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: req.String(), Errno: errno, After: 3, Count: 5})
		}
	}
	if _, err := Fill(within(t), src, r.plan, Options{}); err != nil {
		t.Fatal(err)
	}
	if n := r.sim.ClearFaults(); n < 4*5 {
		t.Errorf("faults struck %d times", n)
	}
	r.filled()
}

// Whenever something breaks, the fill fails and names a BO, or is whole.
func TestFillFaults(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault kfdsim.Fault
		text  string
	}{
		{"dma error", kfdsim.Fault{Kind: kfdsim.FaultDMA}, "did not complete"},
		{"lost mapping", kfdsim.Fault{Kind: kfdsim.FaultMapping}, "did not complete"},
		{"import fails", kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.DRMIocPrimeFDToHandle.String(),
			Errno: syscall.EINVAL}, "import dma-buf"},
		{"no address space", kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.AMDGPUIocGEMVA.String(),
			Errno: syscall.ENOSPC}, "map "},
		{"submission fails", kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.AMDGPUIocCS.String(),
			Errno: syscall.ENODEV}, "submit"},
		{"wait fails", kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: abi.AMDGPUIocWaitCS.String(),
			Errno: syscall.ENODEV}, "did not complete"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
			r.addAll()
			src := r.plain()
			failed := 0
			for after := range 20 {
				f := tc.fault
				f.After, f.Count = 4+after*after/8, 1 // past what Open needs
				r.spoil()
				r.inject(f)
				_, err := Fill(within(t), src, r.plan, Options{Verify: VerifyNone})
				struck := r.sim.ClearFaults()
				switch {
				case err != nil && struck == 0:
					t.Fatalf("without a fault: %v", err)
				case err == nil:
					r.intact()
					continue
				}
				failed++
				e := r.named(err)
				if !strings.Contains(err.Error(), tc.text) || strings.Contains(err.Error(), "\n") ||
					!strings.Contains(err.Error(), fmt.Sprintf("of process %d on gpu %#x", e.BO.PID, e.BO.GPU)) {
					t.Errorf("error is %q", err)
				}
			}
			if failed == 0 {
				t.Error("no fault struck")
			}
		})
	}
}

func TestUnreadableImage(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
	r.addAll()
	src := r.plain()
	bad := r.plan.BOs[5]
	d := &damaged{Source: src, name: bad.File, at: bad.Off + mib}
	_, err := Fill(within(t), d, r.plan, Options{})
	if e := r.named(err); e.BO.Index != 5 || !errors.Is(err, errDamaged) || e.Op != "fill" {
		t.Errorf("error is %v", err)
	}
	if n := d.hits.Load(); n != 1 {
		t.Errorf("%d reads of what cannot be read", n)
	}
	_, err = Fill(within(t), Dir(t.TempDir()), r.plan, Options{})
	if r.named(err); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without images: %v", err)
	}
	last := r.plan.BOs[len(r.plan.BOs)-1]
	if err := os.Truncate(filepath.Join(r.dir, last.File), last.Off+int64(last.Size)-1); err != nil {
		t.Fatal(err)
	}
	_, err = Fill(within(t), src, r.plan, Options{})
	if e := r.named(err); e.BO.Index != last.Index || !strings.Contains(err.Error(), "ends at byte") {
		t.Errorf("short image: %v", err)
	}
}

// A flipped bit in a pack is an error that names BO, file and place.
func TestDamagedStore(t *testing.T) {
	r := newRig(t, kfdsim.GPU{})
	r.add(7, 0, content(9, 6*mib))
	src, dir := r.store()
	packs, err := filepath.Glob(filepath.Join(dir, "packs", "*.pack"))
	if err != nil || len(packs) == 0 {
		t.Fatal(packs, err)
	}
	f, err := os.OpenFile(packs[0], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], 3*mib); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b[:], 3*mib); err != nil {
		t.Fatal(err)
	}
	_, err = Fill(within(t), src, r.plan, Options{})
	if r.named(err); index.ClassOf(err) != index.Corrupt {
		t.Errorf("error is %v, class %v", err, index.ClassOf(err))
	}
}

// stopping is a source that ends a context at its first read.
type stopping struct {
	Source
	stop context.CancelFunc
}

type stoppingFile struct {
	File
	s *stopping
}

func (s *stopping) Open(name string) (File, error) {
	f, err := s.Source.Open(name)
	return stoppingFile{f, s}, err
}

func (f stoppingFile) ReadAt(p []byte, off int64) (int, error) {
	f.s.stop()
	return f.File.ReadAt(p, off)
}

func TestCancel(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
	r.addAll()
	src := r.plain()
	ctx, cancel := context.WithCancel(within(t))
	if _, err := Fill(ctx, &stopping{Source: src, stop: cancel}, r.plan, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled by its reader: %v", err)
	}
	if _, err := Fill(ctx, src, r.plan, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled from the start: %v", err)
	}
	// While the GPU stands still, and everything waits for slots.
	r.inject(kfdsim.Fault{Kind: kfdsim.FaultStall, Delay: 200 * time.Millisecond, Count: 2})
	ctx, cancel = context.WithCancel(within(t))
	defer cancel()
	opts := Options{Staging: MinStaging, Progress: func(done, _ uint64) { cancel() }}
	if _, err := Fill(ctx, src, r.plan, opts); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled at the first progress: %v", err)
	}
	r.sim.ClearFaults()
	if _, err := Fill(within(t), src, r.plan, Options{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	r.filled()
}

func TestWrongPlans(t *testing.T) {
	r := newRig(t, kfdsim.GPU{})
	r.add(1, 0, content(1, 2*page))
	src := r.plain()
	for name, edit := range map[string]func(*BO){
		"no dma-buf":            func(b *BO) { b.Dmabuf = nil },
		"no node":               func(b *BO) { b.Node = 3 },
		"no size":               func(b *BO) { b.Size = 0 },
		"not of words":          func(b *BO) { b.Size = 4097 },
		"larger than it is":     func(b *BO) { b.Size = 4 * page; b.Off = 0; b.File = "long.img" },
		"no file":               func(b *BO) { b.File = "" },
		"before the file":       func(b *BO) { b.Off = -8 },
		"a dma-buf that is not": func(b *BO) { b.Dmabuf = r.plan.Nodes[0].File },
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(r.dir, "long.img"), make([]byte, 8*page), 0o600); err != nil {
				t.Fatal(err)
			}
			p := Plan{Nodes: r.plan.Nodes, BOs: []BO{r.plan.BOs[0]}}
			edit(&p.BOs[0])
			_, err := Fill(within(t), src, p, Options{})
			r.named(err)
		})
	}
	for _, o := range []Options{{Staging: 1000}, {Staging: page}, {MaxBuffer: page - 1}, {MaxBuffer: -1}, {Workers: -1},
		{Verify: 9}} {
		if _, err := Fill(within(t), src, r.plan, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	p := Plan{Nodes: []Node{{File: r.plan.BOs[0].Dmabuf, Name: "no render node"}}, BOs: r.plan.BOs}
	if _, err := Fill(within(t), src, p, Options{}); err == nil || !strings.Contains(err.Error(), "no render node") {
		t.Errorf("a node that is none: %v", err)
	}
}
