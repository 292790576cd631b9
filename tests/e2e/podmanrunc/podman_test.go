package podmanrunc

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

var (
	mb    = flag.Int("containers.mb", 32, "memory of the container in MiB")
	ratio = flag.Float64("containers.ratio", 0,
		"a restore answers in this part of the time of plain podman's; 0: it is not asked")
)

const limit = 3 * time.Minute

// small is what an archive may take without its images.
const small = 256 << 10

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine is one with podman, and stores that share a bucket.
type machine struct {
	t       *testing.T
	dir     string
	criu    string
	program cli.Program
	mem     *lazytarget.Target
	runtime string // the program that podman calls
	store   string // where checkpoints go
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	need := exec.Command("../../../scripts/need.sh", "podman:podman", "runc:runc", "iptables:iptables")
	if out, err := need.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	criu, err := cli.FindCRIU()
	must(t, err)
	// podman makes paths of sockets in its folders; these are short.
	dir, err := os.MkdirTemp("", "pod")
	must(t, err)
	m := &machine{t: t, dir: dir, criu: criu}
	t.Cleanup(m.remove)
	m.program, err = cli.Build(dir)
	must(t, err)
	out, err := exec.Command("go", "build", "-o", dir, "github.com/gpucr/gpucr-fs/cmd/gpucr-runc").CombinedOutput()
	if err != nil {
		t.Fatalf("build gpucr-runc: %v\n%s", err, out)
	}
	root := filepath.Join(dir, "image")
	must(t, os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "status"), 0o755))
	_, err = lazytarget.Build(filepath.Join(root, "bin"))
	must(t, err)
	policy := []byte(`{"default":[{"type":"insecureAcceptAnything"}]}`)
	must(t, os.WriteFile(filepath.Join(dir, "policy.json"), policy, 0o600))
	tar := filepath.Join(dir, "image.tar")
	if out, err := exec.Command("tar", "-C", root, "-cf", tar, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.podman("import", "--signature-policy", filepath.Join(dir, "policy.json"), tar, "target")
	m.runtime = filepath.Join(dir, "runtime")
	t.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	return m
}

// stores makes stores that share a bucket, and gives their folders.
func (m *machine) stores(names ...string) (dirs []string) {
	m.t.Helper()
	server := s3server.Start(m.t)
	server.Bucket(m.t, "containers")
	m.t.Setenv("AWS_ACCESS_KEY_ID", s3server.KeyID)
	m.t.Setenv("AWS_SECRET_ACCESS_KEY", s3server.Secret)
	for _, name := range names {
		dir := filepath.Join(m.dir, name)
		bucket := "s3://containers?region=us-east-1&endpoint=" + server.Endpoint
		out, err := m.program.RunIn(limit, "init", "--remote", bucket, dir)
		if err != nil {
			m.t.Fatalf("%v\n%s", err, out)
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// use has checkpoints go to a store. podman runs a runtime without the environment that it has itself.
func (m *machine) use(store string) {
	m.t.Helper()
	conf := filepath.Join(m.dir, "runtime.json")
	text, err := json.Marshal(map[string]any{"store": store, "criu": m.criu, "durable": true})
	must(m.t, err)
	must(m.t, os.WriteFile(conf, text, 0o600))
	script := "#!/bin/sh\n"
	for k, v := range map[string]string{"GPUCR_RUNC_CONFIG": conf, "GPUCR_FS_FREE_FLOOR": "1MiB",
		"AWS_ACCESS_KEY_ID": s3server.KeyID, "AWS_SECRET_ACCESS_KEY": s3server.Secret} {
		script += fmt.Sprintf("export %s='%s'\n", k, v)
	}
	script += fmt.Sprintf("exec %s \"$@\"\n", filepath.Join(m.dir, "gpucr-runc"))
	must(m.t, os.WriteFile(m.runtime, []byte(script), 0o755))
	m.store = store
}

// command prepares a command of podman, with folders of its own. It is killed when ctx ends.
func (m *machine) command(ctx context.Context, args ...string) *exec.Cmd {
	in := func(name string) string { return filepath.Join(m.dir, name) }
	runtime := m.runtime
	if runtime == "" {
		runtime = "runc"
	}
	all := []string{"--root", in("root"), "--runroot", in("run"), "--tmpdir", in("tmp"), "--storage-driver", "vfs",
		"--cgroup-manager", "cgroupfs", "--events-backend", "none", "--runtime", runtime}
	cmd := exec.CommandContext(ctx, "podman", append(all, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(m.criu)+":"+os.Getenv("PATH"))
	return cmd
}

// podman runs a command. What it starts keeps no pipe of the test's.
func (m *machine) podman(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		m.t.Fatalf("podman %v: %v\n%s\n%s", args, err, out, cli.Log(m.store))
	}
	return out
}

func (m *machine) try(args ...string) (string, error) {
	f, err := os.Create(filepath.Join(m.dir, "output"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := m.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = f, f
	err = cmd.Run()
	text, rerr := os.ReadFile(f.Name())
	return string(text), errors.Join(err, rerr)
}

// start runs a container. AppArmor and seccomp are left out: not every machine has them.
func (m *machine) start(name string) {
	m.t.Helper()
	var err error
	m.mem, err = lazytarget.Watch(filepath.Join(m.dir, "status"))
	must(m.t, err)
	m.t.Cleanup(func() { m.mem.Close() })
	o := lazytarget.Options{MB: *mb, Threads: 1, Seed: 5, Quiet: true, Rough: true}
	m.podman(append([]string{"run", "-d", "--name", name, "--network", "none", "-v",
		filepath.Join(m.dir, "status") + ":/status", "target", "/bin/lazytarget"}, o.Args("/status")...)...)
	must(m.t, m.mem.Ready(limit))
}

func (m *machine) remove() {
	if out, err := m.try("rm", "-f", "-t", "0", "--all"); err != nil {
		m.t.Errorf("%v %s", err, out)
	}
	end := time.Now().Add(limit)
	for len(m.program.Processes()) > 0 && time.Now().Before(end) {
		time.Sleep(10 * time.Millisecond)
	}
	if left := m.program.Processes(); len(left) > 0 {
		m.t.Errorf("processes stay: %v", left)
	}
	if out, err := m.try("unmount", "--all"); err != nil {
		m.t.Errorf("%v %s", err, out)
	}
	if err := os.RemoveAll(m.dir); err != nil {
		m.t.Error(err)
	}
}

// checkpointDir finds where podman keeps a container's checkpoint.
func (m *machine) checkpointDir(name string) string {
	m.t.Helper()
	conf := strings.TrimSpace(m.podman("inspect", name, "--format", "{{.OCIConfigPath}}"))
	return filepath.Join(filepath.Dir(conf), "checkpoint")
}

// answered restores and gives how long it took until the restored process has gone through what it always uses.
func (m *machine) answered(args ...string) time.Duration {
	m.t.Helper()
	m.mem.Reset()
	begin := time.Now()
	m.podman(append([]string{"container", "restore"}, args...)...)
	must(m.t, m.mem.CheckHot(limit))
	took := time.Since(begin)
	must(m.t, m.mem.Check(1, limit))
	return took
}

// whole waits until all that restores bring is there.
func (m *machine) whole() {
	m.t.Helper()
	for end := time.Now().Add(limit); len(m.program.Processes()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("a restore does not end\n%s", cli.Log(m.store))
		}
	}
}

func TestPodman(t *testing.T) {
	m := newMachine(t)
	stores := m.stores("one", "two")
	m.use(stores[0])
	archive := filepath.Join(m.dir, "web.tar.zst")

	// In place.
	m.start("web")
	m.podman("container", "checkpoint", "web")
	var size int64
	must(t, filepath.WalkDir(m.checkpointDir("web"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			st, serr := d.Info()
			size, err = size+st.Size(), serr
		}
		return err
	}))
	if size > small {
		t.Errorf("podman keeps %d bytes of a checkpoint that is in the store", size)
	}
	m.answered("web")
	m.whole()

	// By an archive, on this store and on another one: podman of another machine calls with another store.
	m.podman("container", "checkpoint", "--export", archive, "web")
	m.podman("rm", "web")
	st, err := os.Stat(archive)
	must(t, err)
	if st.Size() > small {
		t.Errorf("the archive has %d bytes", st.Size())
	}
	times := map[string]time.Duration{}
	order := []string{stores[1]}
	if *ratio > 0 {
		order = append(order, stores[0], stores[0]) // with a profile
	}
	for i, where := range order {
		m.use(where)
		name := fmt.Sprintf("web%d", i)
		took := m.answered("--import", archive, "--name", name)
		t.Logf("restore %d, store %s: answered after %v", i, filepath.Base(where), took)
		times["ours"] = took
		m.whole()
		m.podman("rm", "-f", "-t", "0", name)
	}

	// A failure is podman's to tell, and the container goes on.
	m.start("other")
	m.use(filepath.Join(m.dir, "nowhere"))
	if out, err := m.try("container", "checkpoint", "other"); err == nil || !strings.Contains(out, "is not a store") {
		t.Errorf("a checkpoint into a store that is none: %v %s", err, out)
	}
	must(t, m.mem.Check(1, limit))

	m.podman("rm", "-f", "-t", "0", "other")
	if *ratio == 0 {
		return
	}
	// The same by podman alone.
	m.runtime = ""
	m.start("plain")
	m.podman("container", "checkpoint", "--export", archive, "plain")
	m.podman("rm", "plain")
	if st, err := os.Stat(archive); err == nil {
		t.Logf("podman's archive has %d bytes", st.Size())
	}
	times["plain"] = m.answered("--import", archive, "--name", "plain1")
	t.Logf("%d MiB: answered after %v from a store, %v by podman alone: %.2f of it", *mb, times["ours"], times["plain"],
		times["ours"].Seconds()/times["plain"].Seconds())
	if times["ours"].Seconds() > *ratio*times["plain"].Seconds() {
		t.Errorf("a restore answers after %v, that is more than %.2f of %v", times["ours"], *ratio, times["plain"])
	}
}
