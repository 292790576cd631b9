package fill

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/lifetime"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// fillRig is a store with a checkpoint of BOs, a simulated machine that has them, and a plan.
type fillRig struct {
	sim    *kfdsim.Sim
	dir    string
	plan   vram.Plan
	memory [][]byte
	want   [][]byte
}

func newFillRig(t *testing.T, bos int) *fillRig {
	t.Helper()
	r := &fillRig{dir: newStore(t)}
	var err error
	if r.sim, err = kfdsim.Start(kfdsim.Options{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.sim.Close(); err != nil {
			t.Errorf("close simulator: %v", err)
		}
	})
	gpus := r.sim.Options().GPUs
	for _, g := range gpus {
		name := fmt.Sprintf("renderD%d", g.RenderMinor)
		f, err := os.OpenFile(filepath.Join(r.sim.DevDir(), "dri", name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		r.plan.Nodes = append(r.plan.Nodes, vram.Node{File: f, Name: name})
	}
	files := map[string][]byte{}
	for i := range bos {
		gpu := i % len(gpus)
		content := make([]byte, 4096*(1+i*37%400))
		rand.NewChaCha8([32]byte{byte(i)}).Read(content)
		f, mem, err := r.sim.NewDmabuf(gpus[gpu].ID, uint64(len(content)), false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		name := fmt.Sprintf("amdgpu-pages-1-%04x.img", gpus[gpu].ID)
		if files[name] == nil {
			files[name] = make([]byte, 8)
		}
		r.plan.BOs = append(
			r.plan.BOs,
			vram.BO{
				PID:    77,
				GPU:    gpus[gpu].ID,
				Index:  i,
				Kind:   "vram",
				Size:   uint64(len(content)),
				Node:   gpu,
				Dmabuf: f,
				File:   name,
				Off:    int64(len(files[name])),
			},
		)
		files[name] = append(files[name], content...)
		binary.NativeEndian.PutUint64(files[name], uint64(len(files[name])-8))
		r.memory, r.want = append(r.memory, mem), append(r.want, content)
	}
	s, err := index.Open(t.Context(), r.dir, small)
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.Create(t.Context(), "c", index.CreateOptions{})
	for name, b := range files {
		var f *index.DraftFile
		if err == nil {
			f, err = d.Create(name, 0o600)
		}
		if err == nil {
			_, err = f.WriteAt(b, 0)
		}
		if err == nil {
			err = f.Close()
		}
	}
	if err == nil {
		_, err = d.Seal(t.Context())
	}
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return r
}

// through fills from the images of a mount.
func through(ctx context.Context, images string, plan vram.Plan, opts vram.Options) (vram.Report, error) {
	m, err := Open(images)
	if err != nil {
		return vram.Report{}, err
	}
	return m.Fill(ctx, plan, opts, nil)
}

// small are options for tests.
var small = index.Options{FreeFloor: 1, CacheSize: 4 << 20}

func newStore(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// server is what a daemon has of this package.
type server struct {
	dir   string
	store *index.Store
	fills *Server
	end   context.CancelFunc
	once  sync.Once
}

// serve opens the store, and fills until the end of the test.
func serve(t *testing.T, dir string) *server {
	t.Helper()
	s := &server{dir: dir}
	var err error
	if s.store, err = index.Open(t.Context(), dir, small); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background())
	held := lifetime.New()
	held.Hold()
	o := Options{
		Dir:      dir,
		Store:    s.store,
		Lifetime: held,
		Talks:    talk.NewPlaces(ctx.Done()),
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	if s.fills, err = Listen(ctx, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop(t) })
	return s
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	s.once.Do(func() {
		s.end()
		s.fills.Close()
		s.fills.Wait()
		if err := s.store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// mountOf shows the checkpoint.
func mountOf(t *testing.T, s *server) *fs.Server {
	t.Helper()
	srv, err := fs.Mount(t.Context(), s.store, t.TempDir(), fs.Options{Checkpoint: "c"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	return srv
}

func (r *fillRig) filled(t *testing.T) {
	t.Helper()
	for i := range r.memory {
		if !bytes.Equal(r.memory[i], r.want[i]) {
			t.Errorf("buffer object %d differs", i)
		}
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestFillThroughTheDaemon(t *testing.T) {
	r := newFillRig(t, 300) // more than one packet takes
	srv := mountOf(t, serve(t, r.dir))
	var last, total uint64
	rep, err := through(
		within(t), srv.Dir(), r.plan,
		vram.Options{Verify: vram.VerifyAll, Progress: func(done, all uint64) { last, total = done, all }},
	)
	if err != nil {
		t.Fatal(err)
	}
	r.filled(t)
	if rep.BOs != 300 || rep.Bytes == 0 || rep.Verified != rep.Bytes || last != total || total != 2*rep.Bytes {
		t.Errorf("%+v, progress %d of %d", rep, last, total)
	}
	if _, err := through(within(t), t.TempDir(), r.plan, vram.Options{}); !errors.Is(err, ErrNotMounted) {
		t.Errorf("from a plain directory: %v", err)
	}
	// What goes wrong names the BO here, too.
	if err := r.sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultDMA, After: 20, Count: 1}); err != nil {
		t.Fatal(err)
	}
	_, err = through(within(t), srv.Dir(), r.plan, vram.Options{})
	var boErr *vram.Error
	if !errors.As(err, &boErr) || boErr.Op != "fill" || boErr.BO.PID != 77 ||
		!strings.Contains(err.Error(), "did not complete") {
		t.Errorf("dma error: %v", err)
	}
	plan := r.plan
	plan.BOs = append([]vram.BO(nil), plan.BOs...)
	plan.BOs[7].File = "amdgpu-pages-9-0001.img"
	if _, err = through(within(t), srv.Dir(), plan, vram.Options{}); !errors.As(err, &boErr) || boErr.BO.Index != 7 ||
		index.ClassOf(err) != index.NotFound {
		t.Errorf("missing image: %v, class %v", err, index.ClassOf(err))
	}
	if _, err := through(within(t), srv.Dir(), vram.Plan{}, vram.Options{Staging: 1}); err == nil {
		t.Error("senseless options were taken")
	}
}

// The client goes away: the daemon stops filling, and nothing of it is left.
func TestFillEndsWithItsClient(t *testing.T) {
	r := newFillRig(t, 40)
	s := serve(t, r.dir)
	srv := mountOf(t, s)
	if err := r.sim.Inject(
		kfdsim.Fault{Kind: kfdsim.FaultStall, After: 4, Count: 4, Delay: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(within(t))
	reason := errors.New("no longer needed")
	_, err := through(ctx, srv.Dir(), r.plan, vram.Options{Progress: func(_, _ uint64) { cancel(reason) }})
	if !errors.Is(err, reason) {
		t.Errorf("canceled fill: %v", err)
	}
	srv.Close()
	s.stop(t) // waits for the fill
	r.sim.ClearFaults()
}

// A daemon that leaves in the middle of a fill is followed by another one.
func TestFillGoesOnWithASuccessor(t *testing.T) {
	defer func(d time.Duration) { successorWait = d }(successorWait)
	successorWait = time.Minute
	r := newFillRig(t, 40)
	s := serve(t, r.dir)
	srv := mountOf(t, s)
	if err := r.sim.Inject(
		kfdsim.Fault{Kind: kfdsim.FaultStall, After: 8, Count: 2, Delay: 300 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{}, 100)
	result := make(chan error, 1)
	go func() {
		_, err := through(
			within(t),
			srv.Dir(),
			r.plan,
			vram.Options{Verify: vram.VerifyAll, Progress: func(_, _ uint64) {
				select {
				case begun <- struct{}{}:
				default:
				}
			}},
		)
		result <- err
	}()
	select {
	case <-begun:
	case err := <-result:
		t.Fatalf("the fill ended at once: %v", err)
	}
	srv.Close()
	s.stop(t)
	serve(t, r.dir)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	r.filled(t)
}

// From when a fill is announced until it is over its checkpoint cannot be removed. It may be renamed.
func TestFillKeepsItsCheckpoint(t *testing.T) {
	r := newFillRig(t, 3)
	s := serve(t, r.dir)
	srv := mountOf(t, s)
	m, err := Open(srv.Dir())
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	kept := func() bool {
		all, err := s.store.Names(ctx)
		return err == nil && len(all) == 1 && all[0].Restoring
	}
	wait := func(want bool) {
		t.Helper()
		for kept() != want {
			select {
			case <-ctx.Done():
				t.Fatalf("kept: %v", !want)
			case <-time.After(time.Millisecond):
			}
		}
	}
	// One that waits for its turn.
	turn, result := make(chan struct{}), make(chan error, 1)
	if err := s.store.Rename(ctx, "c", "d"); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := m.Fill(ctx, r.plan, vram.Options{Verify: vram.VerifyAll}, turn)
		result <- err
	}()
	wait(true)
	if err := s.store.Remove(ctx, []string{"d"}); index.ClassOf(err) != index.InUse {
		t.Errorf("removed before its turn: %v", err)
	}
	close(turn)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	r.filled(t)
	wait(false)
	// One that was announced, and lacks its buffer objects.
	f, err := m.Announce(ctx, r.plan, vram.Options{}, false)
	if err != nil {
		t.Fatal(err)
	}
	wait(true)
	if err := s.store.Remove(ctx, []string{"d"}); index.ClassOf(err) != index.InUse {
		t.Errorf("removed when it was announced: %v", err)
	}
	f.Close()
	wait(false)
	if err := s.store.Remove(ctx, []string{"d"}); err != nil {
		t.Error(err)
	}
}

// What does not speak the language is turned away.
func TestFillSocketRefusesNonsense(t *testing.T) {
	s := serve(t, newStore(t))
	st, err := os.Stat(filepath.Join(s.dir, "fill.sock"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st.Mode(), err)
	}
	for _, p := range []string{"{", `{"bos":[{}]}`, `{"begin":{"nodes":["a"]}}`,
		`{"begin":{"bos":-1}}`, `{"begin":{"checkpoint":"nothing"}}`} {
		c, err := wire.DialPackets(within(t), s.dir)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
		var got packet
		_, err = c.Receive(&got)
		if err != nil || got.Done == nil || got.Done.Error == nil {
			t.Errorf("%s: %+v, %v", p, got, err)
		}
		c.Close()
	}
}
