package podman

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/cli"
)

const limit = 2 * time.Minute

// program is what runs in the container.
const program = `package main

import "time"

var memory [4 << 20]byte

func main() {
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	for {
		time.Sleep(time.Second)
	}
}
`

// host is a podman with a storage of its own, and a mounted store.
type host struct {
	t   *testing.T
	dir string
	env []string
}

func newHost(t *testing.T) *host {
	t.Helper()
	need := exec.Command("../../../scripts/need.sh", "podman:podman", "runc:runc")
	if out, err := need.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	criu, err := cli.FindCRIU()
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, dir: t.TempDir()}
	if _, err := cli.Build(h.dir); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"storage.conf": fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n",
			h.dir+"/root", h.dir+"/run"),
		"containers.conf": fmt.Sprintf("[containers]\nnetns = \"none\"\nlog_driver = \"k8s-file\"\n"+
			"[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n"+
			"static_dir = %q\ntmp_dir = %q\n", h.dir+"/static", h.dir+"/tmp"),
		"app/main.go": program,
	} {
		name = filepath.Join(h.dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h.env = append(os.Environ(), "PATH="+h.dir+":"+filepath.Dir(criu)+":"+os.Getenv("PATH"), "CGO_ENABLED=0",
		"CONTAINERS_STORAGE_CONF="+h.dir+"/storage.conf", "CONTAINERS_CONF="+h.dir+"/containers.conf")
	h.sh(`mkdir images && gpucr-fs init store && gpucr-fs mount store images
		go build -o rootfs/bin/app app/main.go && tar -C rootfs -cf rootfs.tar . && podman import rootfs.tar app`)
	t.Cleanup(func() { h.sh("podman rm -f web; gpucr-fs umount images") })
	return h
}

// sh runs commands in the host's folder, and gives what they print.
func (h *host) sh(script string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", script)
	cmd.Dir, cmd.Env, cmd.WaitDelay = h.dir, h.env, time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// runs tells whether the container runs.
func (h *host) runs() bool {
	h.t.Helper()
	return strings.TrimSpace(h.sh("podman inspect web --format '{{.State.Running}}'")) == "true"
}

func TestArchiveAndInPlace(t *testing.T) {
	h := newHost(t)
	h.sh("podman run -d --name web app /bin/app >/dev/null")

	// An archive goes straight into the store, and comes back.
	h.sh("podman container checkpoint web -e /dev/fd/3 3>&1 >/dev/null | gpucr-fs import store web-1 -")
	h.sh("podman rm web && gpucr-fs export store web-1 web-1.tar && podman container restore --import web-1.tar")
	if !h.runs() {
		t.Fatal("the container of an archive does not run")
	}

	// Without an archive a link to the checkpoint takes the place of podman's images.
	h.sh(`podman container checkpoint --keep web
		dir=$(dirname "$(podman inspect web --format '{{.OCIConfigPath}}')")
		gpucr-fs import store web-2 $dir/checkpoint && rm -r $dir/checkpoint
		ln -s $PWD/images/.checkpoints/web-2 $dir/checkpoint
		podman container restore web`)
	if !h.runs() {
		t.Fatal("the container does not run")
	}
	h.sh("podman rm -f -t 0 web")
	if left := strings.TrimSpace(h.sh("podman ps -aq; ls -A images/.checkpoints")); left != "web-1\nweb-2" {
		t.Errorf("afterwards there are %q", left)
	}
}
