package posix

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
)

// serveEnv, when set, makes the test binary serve a mount: a JSON serveArgs.
const serveEnv = "POSIX_TEST_SERVE"

type serveArgs struct{ Store, Dir, Checkpoint, New string }

func TestMain(m *testing.M) {
	if args := os.Getenv(serveEnv); args != "" {
		if err := serve(args); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve mounts and then takes commands, one a line: "seal NAME", "stats". It unmounts when its input ends.
func serve(text string) (err error) {
	var a serveArgs
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return err
	}
	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := index.Open(ctx, a.Store, index.Options{Logger: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	m, err := fs.Mount(ctx, s, a.Dir, fs.Options{Checkpoint: a.Checkpoint, New: a.New, Logger: log})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		cmd, arg, _ := strings.Cut(in.Text(), " ")
		switch cmd {
		case "seal":
			if _, err := m.Seal(ctx, arg); err != nil {
				fmt.Println("error", err)
				continue
			}
			fmt.Println("sealed")
		case "stats":
			b, err := json.Marshal(m.Stats())
			if err != nil {
				return err
			}
			fmt.Println(string(b))
		}
	}
	return m.Unmount(ctx)
}

// mount is a mount served by a process of its own.
type mount struct {
	t     *testing.T
	dir   string
	store string
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	once  sync.Once
	dirs  []int // handles of directories, closed before unmounting
}

func newStore(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	must(t, index.Init(dir, index.InitOptions{}))
	return dir
}

// start serves a.Store at a fresh directory, until the test ends.
func start(t *testing.T, a serveArgs) *mount {
	t.Helper()
	if a.Dir == "" {
		a.Dir = t.TempDir()
	}
	b, err := json.Marshal(a)
	must(t, err)
	m := &mount{t: t, dir: a.Dir, store: a.Store, cmd: exec.Command("/proc/self/exe")}
	m.cmd.Env = append(os.Environ(), serveEnv+"="+string(b))
	m.cmd.Stderr = os.Stderr
	m.in, err = m.cmd.StdinPipe()
	must(t, err)
	out, err := m.cmd.StdoutPipe()
	must(t, err)
	m.out = bufio.NewReader(out)
	must(t, m.cmd.Start())
	t.Cleanup(func() { m.stop() })
	if line, err := m.out.ReadString('\n'); line != "ready\n" {
		t.Fatalf("the mount is not served: %s %v", line, err)
	}
	return m
}

// stop unmounts and waits for the process. What programs left open is closed lazily behind a failed test's back.
func (m *mount) stop() {
	m.once.Do(func() {
		for _, fd := range m.dirs {
			syscall.Close(fd)
		}
		m.in.Close()
		rest, _ := io.ReadAll(m.out)
		if err := m.cmd.Wait(); err != nil {
			m.t.Errorf("the mount ended with %v: %s", err, rest)
			syscall.Unmount(m.dir, syscall.MNT_DETACH)
		}
	})
}

// kill ends the server as a crash does.
func (m *mount) kill() {
	m.once.Do(func() {
		m.cmd.Process.Kill()
		m.cmd.Wait()
	})
}

func (m *mount) ask(line string) string {
	m.t.Helper()
	_, err := fmt.Fprintln(m.in, line)
	must(m.t, err)
	answer, err := m.out.ReadString('\n')
	must(m.t, err)
	return strings.TrimSpace(answer)
}

func (m *mount) seal(name string) {
	m.t.Helper()
	if got := m.ask("seal " + name); got != "sealed" {
		m.t.Fatalf("seal %s: %s", name, got)
	}
}

func (m *mount) stats() (s fs.Stats) {
	m.t.Helper()
	must(m.t, json.Unmarshal([]byte(m.ask("stats")), &s))
	return s
}

// opendir opens a directory as CRIU does, for openat, until the mount ends.
func (m *mount) opendir(dir string) int {
	m.t.Helper()
	fd, err := syscall.Open(dir, syscall.O_RDONLY, 0)
	must(m.t, err)
	m.dirs = append(m.dirs, fd)
	return fd
}

// draft makes a checkpoint and gives its directory.
func (m *mount) draft(name string) string {
	m.t.Helper()
	dir := filepath.Join(m.dir, ".checkpoints", name)
	must(m.t, os.Mkdir(dir, 0o755))
	return dir
}

// sealed makes a checkpoint of these files and gives its directory.
func (m *mount) sealed(name string, files map[string][]byte) string {
	m.t.Helper()
	dir := m.draft(name)
	if files["inventory.img"] == nil { // without one it is no checkpoint
		must(m.t, os.WriteFile(filepath.Join(dir, "inventory.img"), []byte("inventory"), 0o644))
	}
	for p, data := range files {
		must(m.t, os.WriteFile(filepath.Join(dir, p), data, 0o644))
	}
	m.seal(name)
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErrno(t *testing.T, err error, want syscall.Errno, what string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s: the %d bytes read are not the %d written", path, len(got), len(want))
	}
}

func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// eventually waits for cond: the kernel does not wait for the server when the last handle of a directory is closed.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not so within a minute", what)
		}
	}
}
