package runc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/cli"
)

// small is what stands for the images in an archive, at most.
const small = 64 << 10

// stored is a container of gpucr-runc, and the store that its checkpoints go to.
type stored struct {
	*container
	program cli.Program
	dir     string
	store   string
	left    *cli.Left
}

func newStored(t *testing.T) *stored {
	t.Helper()
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	dir := t.TempDir()
	program, err := cli.Build(dir)
	must(t, err)
	out, err := exec.Command("go", "build", "-o", dir, "github.com/gpucr/gpucr-fs/cmd/gpucr-runc").CombinedOutput()
	if err != nil {
		t.Fatalf("build gpucr-runc: %v\n%s", err, out)
	}
	t.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	s := &stored{container: newContainer(t, dir), program: program, dir: dir, store: filepath.Join(dir, "store")}
	s.run("init", s.store)
	s.left = program.WatchLeft(s.store)
	conf := filepath.Join(dir, "runtime.json")
	text, err := json.Marshal(map[string]string{"store": s.store, "criu": s.criu})
	must(t, err)
	must(t, os.WriteFile(conf, text, 0o600))
	t.Setenv("GPUCR_RUNC_CONFIG", conf)
	s.runtime = filepath.Join(dir, "gpucr-runc")
	return s
}

func (s *stored) run(args ...string) string {
	s.t.Helper()
	out, err := s.program.RunIn(limit, args...)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, cli.Log(s.store))
	}
	return out
}

// checkpoints lists what the store has.
func (s *stored) checkpoints() []index.Info {
	s.t.Helper()
	var res struct{ Checkpoints []index.Info }
	must(s.t, json.Unmarshal([]byte(s.run("ls", "--json", s.store)), &res))
	return res.Checkpoints
}

// quiet waits for the end of everything that a restore has started.
func (s *stored) quiet() {
	s.t.Helper()
	for end := time.Now().Add(limit); len(s.program.Processes()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("processes stay: %v\n%s", s.program.Processes(), cli.Log(s.store))
		}
	}
}

// TestRuntime puts a container through gpucr-runc as podman and containerd call it: created, a checkpoint that fails,
// one that does not, restores of it.
func TestRuntime(t *testing.T) {
	s := newStored(t)
	images, work := filepath.Join(s.dir, "checkpoint"), filepath.Join(s.dir, "work")
	must(t, s.runc("run", "-d", "--bundle", s.bundle, s.name))
	must(t, s.mem.Ready(limit))

	// The store's disk is too full. The container goes on, and nothing of a checkpoint is left.
	t.Setenv("GPUCR_FS_FREE_FLOOR", "1024TiB")
	err := s.runc("checkpoint", "--image-path", images, "--work-path", work, s.name)
	if err == nil || !strings.Contains(err.Error(), "free") {
		t.Fatalf("a checkpoint into a store without space: %v", err)
	}
	t.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	must(t, s.mem.Check(1, limit))
	if all, _ := os.ReadDir(images); len(all) > 0 || len(s.checkpoints()) > 0 {
		t.Fatalf("a failed checkpoint left %v, and %v in the store", all, s.checkpoints())
	}

	must(t, s.runc("checkpoint", "--image-path", images, "--work-path", work, "--leave-running", s.name))
	must(t, s.mem.Check(1, limit))
	must(t, os.RemoveAll(images))
	if err := s.runc("checkpoint", "--image-path", images, "--work-path", work, s.name); err != nil {
		t.Fatalf("%v\n%s", err, errorLines(work, "dump.log"))
	}
	if n := sizeOf(t, images); n > small {
		t.Errorf("what stands for the images takes %d bytes", n)
	}
	all := s.checkpoints()
	slices.SortFunc(all, func(a, b index.Info) int { return strings.Compare(b.Name, a.Name) }) // the last one first
	if len(all) != 2 || all[0].Labels["container"] != s.name || all[0].State != index.Sealed {
		t.Fatalf("the store has %+v", all)
	}

	for i := range 2 {
		s.mem.Reset()
		pid := filepath.Join(s.dir, "pid")
		if err := s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, "--pid-file", pid,
			"--work-path", filepath.Join(s.dir, fmt.Sprintf("restore-%d", i)), s.name); err != nil {
			t.Fatalf("%v\n%s", err, cli.Log(s.store))
		}
		must(t, s.mem.Check(1, limit))
		s.quiet()
		if _, err := os.ReadFile(pid); err != nil {
			t.Error(err)
		}
		must(t, s.runc("delete", "-f", s.name))
	}
	s.run("profile", "show", s.store, all[0].Name)

	s.inForeground(images)
	s.otherDump(images, all)
	must(t, s.left.Nothing())
}

// inForeground restores without --detach: the runtime stays, and ends as the container does.
func (s *stored) inForeground(images string) {
	s.t.Helper()
	s.mem.Reset()
	done := make(chan error, 1)
	go func() {
		done <- s.runc("restore", "--bundle", s.bundle, "--image-path", images, "--work-path",
			filepath.Join(s.dir, "fore"), s.name)
	}()
	must(s.t, s.mem.Check(1, limit))
	select {
	case err := <-done:
		s.t.Fatalf("a restore in the foreground ended: %v", err)
	default:
	}
	must(s.t, s.runc("kill", s.name, "KILL"))
	var exit *exec.ExitError
	if err := <-done; !errors.As(err, &exit) || exit.ExitCode() != 128+9 {
		s.t.Errorf("the restore of a container that was killed ended with %v", err)
	}
	s.quiet()
}

// otherDump refuses a reference to a dump that the store has another one in place of, or none.
func (s *stored) otherDump(images string, all []index.Info) {
	s.t.Helper()
	file := filepath.Join(images, "gpucr-fs.json")
	text, err := os.ReadFile(file)
	must(s.t, err)
	for name, want := range map[string]string{all[1].Name: "another dump",
		"nobody": "share checkpoints by a bucket"} {
		other := strings.ReplaceAll(string(text), all[0].Name, name)
		must(s.t, os.WriteFile(file, []byte(other), 0o600))
		err = s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, "--work-path",
			filepath.Join(s.dir, "other"), s.name)
		if err == nil || !strings.Contains(err.Error(), want) {
			s.t.Errorf("a restore of %s: %v", name, err)
		}
		if s.runc("state", s.name) == nil {
			s.t.Error("a restore that was refused left a container")
		}
	}
	s.quiet()
}

func sizeOf(t *testing.T, dir string) (sum int64) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		sum += st.Size()
		return err
	}))
	return sum
}

// TestElsewhere: gpucr-runc is runc for all that is not for a store, images without a reference among it.
func TestElsewhere(t *testing.T) {
	s := newStored(t)
	images, work := filepath.Join(s.dir, "plain"), filepath.Join(s.dir, "work")
	must(t, s.runc("run", "-d", "--bundle", s.bundle, s.name))
	must(t, s.mem.Ready(limit))
	ours := s.runtime
	s.runtime = "runc"
	must(t, s.runc("checkpoint", "--image-path", images, "--work-path", work, s.name))
	s.runtime = ours
	must(t, s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, "--work-path", work, s.name))
	must(t, s.mem.Check(1, limit))
	for _, args := range [][]string{{"--version"}, {"features"}, {"checkpoint", "--help"}, {"state", "nobody"}} {
		got, gotErr := exec.Command(s.runtime, args...).CombinedOutput()
		want, wantErr := exec.Command("runc", args...).CombinedOutput()
		cut := func(b []byte) string {
			dated := func(l string) bool { return strings.Contains(l, "time=") }
			return strings.Join(slices.DeleteFunc(strings.Split(string(b), "\n"), dated), "\n")
		}
		if cut(got) != cut(want) || (gotErr == nil) != (wantErr == nil) {
			t.Errorf("gpucr-runc %v: %v %s\nrunc: %v %s", args, gotErr, got, wantErr, want)
		}
	}
	must(t, s.left.Nothing())
}
