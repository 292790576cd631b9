package vram

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	kib  = 1 << 10
	mib  = 1 << 20
	page = 4096
)

// rig is a simulated machine and a plan of BOs on it, with the images that
// belong to them in a directory.
type rig struct {
	t    testing.TB
	sim  *kfdsim.Sim
	dir  string
	plan Plan
	vram [][]byte // by BO: the memory
	want [][]byte // by BO: its contents in the image
	size map[string]int64
}

func newRig(t testing.TB, gpus ...kfdsim.GPU) *rig {
	t.Helper()
	sim, err := kfdsim.Start(kfdsim.Options{Dir: t.TempDir(), GPUs: gpus})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Errorf("close simulator: %v", err)
		}
	})
	r := &rig{t: t, sim: sim, dir: t.TempDir(), size: map[string]int64{}}
	for _, g := range sim.Options().GPUs {
		name := fmt.Sprintf("renderD%d", g.RenderMinor)
		f, err := os.OpenFile(filepath.Join(sim.DevDir(), "dri", name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		r.plan.Nodes = append(r.plan.Nodes, Node{File: f, Name: name})
	}
	return r
}

// add makes a BO of a process on a GPU that holds stale bytes.
func (r *rig) add(pid, gpu int, content []byte) {
	r.t.Helper()
	id := r.sim.Options().GPUs[gpu].ID
	size := (len(content) + page - 1) / page * page
	f, mem, err := r.sim.NewDmabuf(id, uint64(size), len(r.plan.BOs)%5 == 4)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { f.Close() })
	stale(mem)
	name := fmt.Sprintf("amdgpu-pages-%d-%04x.img", pid, id)
	if r.size[name] == 0 {
		r.size[name] = 8
	}
	r.plan.BOs = append(r.plan.BOs,
		BO{PID: pid, GPU: id, Index: len(r.plan.BOs), Kind: "vram", VA: 0x7f0000000000 + uint64(len(r.plan.BOs))<<32,
			Size: uint64(len(content)), Node: gpu, Dmabuf: f, File: name, Off: r.size[name]})
	r.size[name] += int64(len(content))
	r.vram, r.want = append(r.vram, mem[:len(content)]), append(r.want, content)
}

// images returns the image files' contents.
func (r *rig) images() map[string][]byte {
	out := map[string][]byte{}
	for name, size := range r.size {
		out[name] = binary.NativeEndian.AppendUint64(nil, uint64(size-8))
	}
	for i, bo := range r.plan.BOs {
		out[bo.File] = append(out[bo.File], r.want[i]...)
	}
	return out
}

// plain writes the images to the directory.
func (r *rig) plain() Source {
	r.t.Helper()
	for name, b := range r.images() {
		if err := os.WriteFile(filepath.Join(r.dir, name), b, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	return Dir(r.dir)
}

// store writes the images to a new store.
func (r *rig) store() (Source, string) {
	r.t.Helper()
	dir := filepath.Join(r.t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		r.t.Fatal(err)
	}
	s, err := index.Open(r.t.Context(), dir, index.Options{FreeFloor: 1})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	d, err := s.Create(r.t.Context(), "c", index.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for name, b := range r.images() {
		f, err := d.Create(name, 0o600)
		if err == nil {
			_, err = f.WriteAt(b, 0)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	if _, err := d.Seal(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	c, err := s.Checkpoint("c")
	if err != nil {
		r.t.Fatal(err)
	}
	return Checkpoint{c}, dir
}

// filled checks VRAM, and that the GPU ran into nothing.
func (r *rig) filled() {
	r.t.Helper()
	r.intact()
	if errs := r.sim.State().Errors; len(errs) > 0 {
		r.t.Errorf("the gpu ran into %+v", errs)
	}
}

// intact checks VRAM, from the GPU's side.
func (r *rig) intact() {
	r.t.Helper()
	for i := range r.vram {
		if !bytes.Equal(r.vram[i], r.want[i]) {
			for k := range r.vram[i] {
				if r.vram[i][k] != r.want[i][k] {
					r.t.Errorf("bo %d of %d bytes differs from byte %#x on", i, len(r.vram[i]), k)
					break
				}
			}
		}
	}
}

// spoil puts stale bytes back.
func (r *rig) spoil() {
	for _, m := range r.vram {
		stale(m)
	}
}

// stale fills memory with what it should not hold.
func stale(b []byte) {
	b[0] = 0xa5
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

func (r *rig) inject(f kfdsim.Fault) {
	r.t.Helper()
	if err := r.sim.Inject(f); err != nil {
		r.t.Fatal(err)
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// noise is made once, since that takes its time under the race detector.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 2*mib)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
})

// content returns n bytes; zeros gives its runs of zeros as pairs of offset and
// end.
func content(seed byte, n int, zeros ...int) []byte {
	b := make([]byte, n)
	for at := 0; at < n; {
		at += copy(b[at:], noise()[(int(seed)*40961+at/mib*12289)%mib:])
	}
	for i := 0; i+1 < len(zeros); i += 2 {
		clear(b[zeros[i]:min(zeros[i+1], n)])
	}
	return b
}

// named checks that an error is about a BO of the plan.
func (r *rig) named(err error) *Error {
	r.t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		r.t.Fatalf("error %v does not name a buffer object", err)
	}
	if bo := r.plan.BOs[e.BO.Index]; bo.PID != e.BO.PID || bo.GPU != e.BO.GPU {
		r.t.Errorf("error names %+v", e.BO)
	}
	return e
}

// damaged is a source whose file cannot be read at some byte.
type damaged struct {
	Source
	name string
	at   int64
	hits atomic.Int64
}

var errDamaged = errors.New("damaged")

type damagedFile struct {
	File
	d *damaged
}

func (d *damaged) Open(name string) (File, error) {
	f, err := d.Source.Open(name)
	if err != nil || name != d.name {
		return f, err
	}
	return damagedFile{f, d}, nil
}

func (f damagedFile) ReadAt(p []byte, off int64) (int, error) {
	if off <= f.d.at && f.d.at < off+int64(len(p)) {
		f.d.hits.Add(1)
		return 0, errDamaged
	}
	return f.File.ReadAt(p, off)
}
