package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreTopFunction("github.com/dgraph-io/ristretto/v2/z.init.0.func1"))
}

func newStore(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func small() index.Options { return index.Options{FreeFloor: 1, CacheSize: 4 << 20} }

// fakeMount stands for a mount without a kernel behind it.
type fakeMount struct {
	store *index.Store
	draft *index.Draft
	busy  bool
	root  *os.File // of a private one
	once  sync.Once
	gone  chan struct{}
}

func (m *fakeMount) Seal(ctx context.Context, name string) (index.Info, error) {
	if m.draft == nil || m.draft.Name() != name {
		return index.Info{}, &index.Error{Class: index.NotFound}
	}
	return m.draft.Seal(ctx)
}

func (m *fakeMount) Unmount(context.Context) error {
	if m.busy {
		return &index.Error{Class: index.InUse, Op: "unmount", Err: errors.New("files are open")}
	}
	return m.Close()
}

func (m *fakeMount) Close() error {
	m.once.Do(func() {
		m.root.Close()
		close(m.gone)
	})
	return nil
}

func (m *fakeMount) Wait() error {
	<-m.gone
	if m.draft != nil {
		return m.draft.Abort()
	}
	return nil
}

func (m *fakeMount) Draft(string) (*index.Draft, bool) { return nil, false }

func (m *fakeMount) Failure(string) error { return nil }

func (m *fakeMount) Discard(string) error { return m.draft.Abort() }

func (m *fakeMount) Settle(context.Context, string) error { return m.draft.Abort() }

func (m *fakeMount) Root() *os.File { return m.root }

func (m *fakeMount) Instead(map[string][]byte, bool) {}

func (m *fakeMount) Stats() fs.Stats { return fs.Stats{Reads: 7} }

// server is a daemon under test.
type server struct {
	*Daemon
	dir    string
	mu     sync.Mutex
	mounts map[string]*fakeMount
	ended  chan error
	cancel context.CancelFunc
}

// serve starts a daemon with one fake mount at /m, stopped at the end of the test.
func serve(t testing.TB, dir string) *server {
	t.Helper()
	s := &server{dir: dir, mounts: map[string]*fakeMount{}, ended: make(chan error, 1)}
	d, err := Start(
		t.Context(),
		Options{Dir: dir, Index: small(), Version: "test", Logger: slog.New(slog.NewTextHandler(testLog{t}, nil)),
			Mount: func(ctx context.Context, store *index.Store, r mounts.Request,
				_ mounts.OnAccess) (mounts.Mount, error) {
				if strings.Contains(r.Dir, "refused") {
					return nil, &index.Error{
						Class: index.Invalid,
						Op:    "mount",
						Err:   errors.New("refused"),
						Hint:  "elsewhere",
					}
				}
				m := &fakeMount{store: store, gone: make(chan struct{}), busy: strings.Contains(r.Dir, "busy")}
				if r.New != "" {
					var err error
					if m.draft, err = store.Create(ctx, r.New, index.CreateOptions{}); err != nil {
						return nil, err
					}
				}
				if r.Private {
					var err error
					if m.root, err = os.Open(t.TempDir()); err != nil {
						return nil, err
					}
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				s.mounts[r.Dir] = m
				return m, nil
			}},
	)
	if err != nil {
		t.Fatal(err)
	}
	s.Daemon = d
	if _, err := d.AddMount(t.Context(), mounts.Request{Dir: "/m"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.ended <- d.Run(ctx) }()
	t.Cleanup(func() { s.stop(t) })
	return s
}

func (s *server) stop(t testing.TB) {
	t.Helper()
	if s.cancel == nil {
		return
	}
	s.cancel()
	if err := <-s.ended; err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	s.cancel = nil
}

// wantEnd waits until the daemon has ended by itself.
func (s *server) wantEnd(t testing.TB) {
	t.Helper()
	select {
	case err := <-s.ended:
		if err != nil {
			t.Error(err)
		}
		s.ended <- nil
	case <-time.After(time.Minute):
		t.Fatal("the daemon does not end")
	}
}

func (s *server) mount(dir string) *fakeMount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mounts[dir]
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func connect(t testing.TB, dir string, wantRemote bool) *client.Session {
	t.Helper()
	s, err := client.Connect(t.Context(), dir, small())
	if err != nil {
		t.Fatal(err)
	}
	if s.ThroughDaemon() != wantRemote {
		t.Errorf("through a daemon: %v", s.ThroughDaemon())
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// images makes a small image directory.
func images(t testing.TB, text string) string {
	t.Helper()
	dir := t.TempDir()
	body := strings.Repeat(text, 200000/len(text))
	if err := os.WriteFile(filepath.Join(dir, "pages-1.img"), []byte(body+strings.Repeat("\x00", 1<<20)),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "inventory.img"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
