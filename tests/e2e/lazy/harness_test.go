package lazy

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/uffd"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

var targetBin string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && playRole(os.Args[1], os.Args[2:]) {
		return
	}
	dir, err := os.MkdirTemp("", "lazy-e2e-")
	if err == nil {
		targetBin, err = lazytarget.Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// criuProgram finds the program that `make criu` provides.
func criuProgram(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("CRIU"); p != "" {
		return p
	}
	out, err := exec.Command("go", "env", "GOMOD").Output()
	must(t, err)
	p := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "build", "criu", "criu")
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("no CRIU: %v; run make criu, or set CRIU", err)
	}
	return p
}

func criu(t testing.TB, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dir := args[2]
	log := filepath.Join(dir, args[0]+".log")
	args = append(args, "-o", log, "-v3")
	cmd := exec.CommandContext(ctx, criuProgram(t), args...)
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log)
		lines := bytes.Split(text, []byte("\n"))
		return fmt.Errorf("criu %v: %w\n%s", args, err, bytes.Join(lines[max(0, len(lines)-25):], []byte("\n")))
	}
	return nil
}

// checkpoint is a dumped target.
type checkpoint struct {
	*lazytarget.Target
	dir string // of the images
	pid int
	opt lazytarget.Options
}

// dump starts a target and dumps it.
func dump(t testing.TB, o lazytarget.Options) *checkpoint {
	t.Helper()
	return dumpProgram(t, targetBin, o)
}

func dumpProgram(t testing.TB, bin string, o lazytarget.Options) *checkpoint {
	t.Helper()
	dir := t.TempDir()
	c := &checkpoint{dir: filepath.Join(dir, "images"), opt: o}
	must(t, os.Mkdir(c.dir, 0o755))
	var err error
	c.Target, err = lazytarget.Start(bin, dir, o)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	t.Cleanup(c.Kill)
	c.pid = c.PID
	if !o.Quiet {
		must(t, c.Beats(500, time.Minute))
	}
	// A child of the moment may be in the way of seizing the tree: again.
	for try := 0; ; try++ {
		if err = criu(t, "dump", "-D", c.dir, "-t", strconv.Itoa(c.pid)); err == nil {
			break
		}
		if try == 5 {
			t.Fatal(err)
		}
	}
	must(t, c.Dumped())
	return c
}

// restore runs criu restore with pages from the server that listens in work.
func (c *checkpoint) restore(t testing.TB, work string) error {
	err := criu(t, "restore", "-W", work, "-D", c.dir, "--lazy-pages", "-d")
	c.Restored(c.pid)
	return err
}

// testLog sends a server's log to the test's.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(logWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// server is a lazy-pages server in this process.
type server struct {
	*uffd.Server
	queue *prefetch.Queue
	files []prefetch.File
	stop  context.CancelFunc
	done  chan struct{}
	err   error
}

// serveOptions change how a server serves; the zero value is the plain way.
type serveOptions struct {
	rate  int64                             // of the sweep, bytes a second
	quiet bool                              // log nothing
	wrap  func(prefetch.File) prefetch.File // replaces files
	// profile is replayed, and recorder made to record one.
	profile  *prefetch.Profile
	recorder *prefetch.Recorder
	memory   int64 // for buffers
}

// serve starts a server for the images.
func (c *checkpoint) serve(t testing.TB, work string, o serveOptions) *server {
	t.Helper()
	log := testLog(t)
	if o.quiet {
		log = slog.New(slog.DiscardHandler)
	}
	images, err := criuimg.Load(os.DirFS(c.dir))
	must(t, err)
	plan := uffd.NewPlan(images)
	s := &server{done: make(chan struct{})}
	for _, name := range plan.Files {
		f, err := prefetch.OpenFile(filepath.Join(c.dir, name))
		must(t, err)
		t.Cleanup(func() { f.Close() })
		if o.wrap != nil {
			s.files = append(s.files, o.wrap(f))
		} else {
			s.files = append(s.files, f)
		}
	}
	s.Server, err = uffd.Listen(uffd.Options{Dir: work, Plan: plan, Logger: log})
	must(t, err)
	q := prefetch.Options{Files: s.files, Names: plan.Files, Sink: s.Server, Rate: o.rate, Memory: o.memory,
		Recorder: o.recorder, Logger: log}
	if o.memory > 0 {
		q.RunBytes = o.memory / 4
	}
	if o.profile != nil {
		var sizes []int64
		for _, f := range s.files {
			sizes = append(sizes, f.Size())
		}
		q.Hot = o.profile.Ranges(plan.Files, sizes)
	}
	s.queue, err = prefetch.New(q)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	go func() {
		defer close(s.done)
		s.err = s.Serve(ctx, s.queue)
	}()
	t.Cleanup(func() {
		cancel()
		<-s.done
		s.queue.Close()
		s.Server.Close()
	})
	return s
}

// wait waits until all is resident and returns what Serve did.
func (s *server) wait(timeout time.Duration) error {
	select {
	case <-s.done:
		return s.err
	case <-time.After(timeout):
		return fmt.Errorf("the server still serves after %v: %+v", timeout, s.Report())
	}
}
