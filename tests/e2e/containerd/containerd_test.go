package containerd

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

var (
	mb    = flag.Int("containers.mb", 32, "memory of the container in MiB")
	ratio = flag.Float64("containers.ratio", 0,
		"a restore answers in this part of the time of plain containerd's; 0: it is not asked")
)

const limit = 3 * time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// machine is one with a containerd of its own.
type machine struct {
	t       *testing.T
	dir     string
	criu    string
	program cli.Program
	store   string
	mem     *lazytarget.Target
}

const config = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "%[1]s/c.sock"
[ttrpc]
  address = "%[1]s/t.sock"
`

// imageOf makes an archive of an image with the program in it, as ctr imports it: one of docker's form, which needs no
// digest to be known before.
func (m *machine) imageOf(name string) string {
	m.t.Helper()
	rootfs, archive := filepath.Join(m.dir, "rootfs"), filepath.Join(m.dir, "archive")
	must(m.t, os.MkdirAll(filepath.Join(rootfs, "bin"), 0o755))
	must(m.t, os.Mkdir(archive, 0o755))
	_, err := lazytarget.Build(filepath.Join(rootfs, "bin"))
	must(m.t, err)
	m.command("tar", "-C", rootfs, "-cf", filepath.Join(archive, "layer.tar"), ".")
	sum := strings.Fields(m.command("sha256sum", filepath.Join(archive, "layer.tar")))[0]
	conf := fmt.Sprintf(`{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin"]},
		"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}`, sum)
	must(m.t, os.WriteFile(filepath.Join(archive, "config.json"), []byte(conf), 0o600))
	manifest := fmt.Sprintf(`[{"Config":"config.json","RepoTags":[%q],"Layers":["layer.tar"]}]`, name)
	must(m.t, os.WriteFile(filepath.Join(archive, "manifest.json"), []byte(manifest), 0o600))
	file := filepath.Join(m.dir, "image.tar")
	m.command("tar", "-C", archive, "-cf", file, "manifest.json", "config.json", "layer.tar")
	return file
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	out, err := exec.Command("../../../scripts/need.sh", "containerd:containerd", "runc:runc").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	criu, err := cli.FindCRIU()
	must(t, err)
	dir, err := os.MkdirTemp("", "ctd") // paths of sockets are short
	must(t, err)
	m := &machine{t: t, dir: dir, criu: criu, store: filepath.Join(dir, "store")}
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	m.program, err = cli.Build(dir)
	must(t, err)
	m.command("go", "build", "-o", dir, "github.com/gpucr/gpucr-fs/cmd/gpucr-runc")
	must(t, os.WriteFile(filepath.Join(dir, "config.toml"), fmt.Appendf(nil, config, dir), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "status"), 0o755))
	text, err := json.Marshal(map[string]string{"store": m.store, "criu": criu})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "runtime.json"), text, 0o600))
	m.command(string(m.program), "init", m.store)
	m.serve()
	return m
}

// serve starts containerd, with what gpucr-runc needs in its environment: shims and runtimes have it, too.
func (m *machine) serve() {
	m.t.Helper()
	cmd := exec.Command("containerd", "-c", filepath.Join(m.dir, "config.toml"))
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(m.criu)+":"+os.Getenv("PATH"), "GPUCR_FS_FREE_FLOOR=1MiB",
		"GPUCR_RUNC_CONFIG="+filepath.Join(m.dir, "runtime.json"))
	log, err := os.Create(filepath.Join(m.dir, "containerd.log"))
	must(m.t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	must(m.t, cmd.Start())
	m.t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		if _, err := m.try("ctr", "-a", filepath.Join(m.dir, "c.sock"), "version"); err == nil {
			return
		} else if time.Now().After(end) {
			m.t.Fatal(err)
		}
	}
}

func (m *machine) try(name string, args ...string) (string, error) {
	f, err := os.CreateTemp(m.dir, "out-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = f, f
	late := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	defer late.Stop()
	err = cmd.Run()
	text, rerr := os.ReadFile(f.Name())
	return string(text), errors.Join(err, rerr)
}

func (m *machine) command(name string, args ...string) string {
	m.t.Helper()
	out, err := m.try(name, args...)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(m.dir, "containerd.log"))
		m.t.Fatalf("%s %v: %v\n%s\n%s\n%s", name, args, err, out, log[max(0, len(log)-2000):], cli.Log(m.store))
	}
	return out
}

func (m *machine) ctr(args ...string) string {
	m.t.Helper()
	return m.command("ctr", append([]string{"-a", filepath.Join(m.dir, "c.sock")}, args...)...)
}

// remove ends a container.
func (m *machine) remove(name string) {
	m.t.Helper()
	m.ctr("task", "rm", "-f", name)
	m.ctr("containers", "rm", name)
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

// stored gives the size of what containerd keeps.
func (m *machine) stored() (sum int64) {
	m.t.Helper()
	fmt.Sscan(m.command("du", "-sb", filepath.Join(m.dir, "root", "io.containerd.content.v1.content")), &sum)
	return sum
}

// through runs a container with a runtime, checkpoints it, and restores it some times. It gives how long the last
// restore took until the process had gone through what it always uses, and what containerd keeps of the checkpoint.
func (m *machine) through(runtime, image string, restores int) (took time.Duration, kept int64) {
	m.t.Helper()
	o := lazytarget.Options{MB: *mb, Threads: 1, Seed: 5, Quiet: true, Rough: true}
	var err error
	m.mem, err = lazytarget.Watch(filepath.Join(m.dir, "status"))
	must(m.t, err)
	m.t.Cleanup(func() { m.mem.Close() })
	name := filepath.Base(runtime)
	m.ctr(append([]string{"run", "-d", "--snapshotter", "native", "--runc-binary", runtime, "--mount",
		"type=bind,src=" + filepath.Join(m.dir, "status") + ",dst=/status,options=rbind:rw",
		image, name, "/bin/lazytarget"},
		o.Args("/status")...)...)
	must(m.t, m.mem.Ready(limit))
	before := m.stored()
	m.ctr("containers", "checkpoint", "--task", name, name+"-1")
	kept = m.stored() - before
	must(m.t, m.mem.Check(1, limit)) // containerd leaves it running
	m.remove(name)
	for i := range restores {
		m.mem.Reset()
		begin := time.Now()
		copied := fmt.Sprintf("%s-copy%d", name, i)
		m.ctr("containers", "restore", "--live", copied, name+"-1")
		must(m.t, m.mem.CheckHot(limit))
		took = time.Since(begin)
		must(m.t, m.mem.Check(1, limit))
		m.whole()
		m.remove(copied)
	}
	return took, kept
}

func TestContainerd(t *testing.T) {
	m := newMachine(t)
	const image = "localhost/target:latest"
	m.ctr("images", "import", "--snapshotter", "native", m.imageOf(image))
	ours, kept := m.through(filepath.Join(m.dir, "gpucr-runc"), image, 2)
	if kept > 256<<10 {
		t.Errorf("containerd keeps %d bytes of a checkpoint that is in the store", kept)
	}
	if *ratio == 0 {
		return
	}
	plain, _ := m.through("/usr/sbin/runc", image, 2)
	t.Logf("%d MiB: answered after %v from a store, %v by runc alone: %.2f of it", *mb, ours, plain,
		ours.Seconds()/plain.Seconds())
	if ours.Seconds() > *ratio*plain.Seconds() {
		t.Errorf("a restore answers after %v, that is more than %.2f of %v", ours, *ratio, plain)
	}
}
