package lifecycle

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

func TestSocket(t *testing.T) {
	dir := newStore(t)
	s := serve(t, dir)
	st, err := os.Stat(filepath.Join(dir, "daemon.sock"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", st.Mode(), err)
	}
	if _, err := Start(t.Context(), Options{Dir: dir, Index: small(), Mount: s.o.Mount}); index.ClassOf(
		err,
	) != index.InUse {
		t.Errorf("a second daemon: %v", err)
	}
	s.stop(t)
	if _, err := os.Stat(filepath.Join(dir, "daemon.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
	connect(t, dir, false)
}

// TestLongPath puts the store where no socket address reaches.
func TestLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40), "store")
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	serve(t, dir)
	s := connect(t, dir, true)
	must[service.StatsResult](t)(service.LiveStats.Do(t.Context(), s, service.StatsRequest{}, wire.Streams{}))
}

// TestStaleSocket leaves a socket as a killed daemon does.
func TestStaleSocket(t *testing.T) {
	dir := newStore(t)
	l, err := net.Listen("unix", filepath.Join(dir, "daemon.sock"))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	local, err := client.Connect(t.Context(), dir, small())
	if err != nil || local.ThroughDaemon() {
		t.Fatalf("a dead socket is in the way: %v", err)
	}
	if err := local.Close(); err != nil {
		t.Fatal(err)
	}
	serve(t, dir)
	connect(t, dir, true)
}

func TestMountsComeAndGo(t *testing.T) {
	dir := newStore(t)
	d := serve(t, dir)
	s := connect(t, dir, true)
	ctx, none := t.Context(), wire.Streams{}
	res := must[mounts.Result](t)(service.AddMount.Do(ctx, s, mounts.Request{Dir: "/n", New: "draft"}, none))
	if res.PID != os.Getpid() || res.Store != dir || res.New != "draft" {
		t.Errorf("mount: %+v", res)
	}
	for name, c := range map[string]struct {
		err  error
		want index.Class
	}{
		"twice":   {second(service.AddMount.Do(ctx, s, mounts.Request{Dir: "/n"}, none)), index.Exists},
		"refused": {second(service.AddMount.Do(ctx, s, mounts.Request{Dir: "/refused"}, none)), index.Invalid},
		"foreign": {second(service.Unmount.Do(ctx, s, service.UnmountRequest{Dir: "/"}, none)), index.NotFound},
	} {
		if index.ClassOf(c.err) != c.want {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if i := must[service.Brief](t)(service.Seal.Do(ctx, s, service.SealRequest{Name: "draft"}, none)); i.State !=
		index.Sealed {
		t.Errorf("seal: %+v", i)
	}
	must[mounts.Result](t)(service.AddMount.Do(ctx, s, mounts.Request{Dir: "/busy"}, none))
	if _, err := service.Unmount.Do(ctx, s, service.UnmountRequest{Dir: "/busy"}, none); index.ClassOf(
		err,
	) != index.InUse {
		t.Errorf("umount of a busy one: %v", err)
	}
	if r := must[service.UnmountResult](t)(
		service.Unmount.Do(ctx, s, service.UnmountRequest{Dir: "/busy", Force: true}, none)); r.Last {
		t.Errorf("forced: %+v", r)
	}
	if r := must[service.UnmountResult](t)(
		service.Unmount.Do(ctx, s, service.UnmountRequest{Dir: "/n"}, none)); r.Last {
		t.Errorf("umount: %+v", r)
	}
	// The last one goes by itself, as with umount(8).
	d.mount("/m").Close()
	// The session holds the daemon, which goes on with its work.
	must[mounts.Result](t)(service.AddMount.Do(ctx, s, mounts.Request{Dir: "/again"}, none))
	d.mount("/again").Close()
	s.Close()
	d.wantEnd(t)
}

func TestLastUnmountEndsTheDaemon(t *testing.T) {
	dir := newStore(t)
	d := serve(t, dir)
	s := connect(t, dir, true)
	if r := must[service.UnmountResult](t)(
		service.Unmount.Do(t.Context(), s, service.UnmountRequest{Dir: "/m"}, wire.Streams{})); !r.Last {
		t.Errorf("umount: %+v", r)
	}
	s.Close()
	d.wantEnd(t)
	connect(t, dir, false)
}

// TestUnknownOperation is what a newer program meets in an older daemon.
func TestUnknownOperation(t *testing.T) {
	dir := newStore(t)
	serve(t, dir)
	s := connect(t, dir, true)
	err := s.Call(t.Context(), "teleport", struct{}{}, &struct{}{}, wire.Streams{})
	if index.ClassOf(err) != index.Unsupported || index.HintOf(err) == "" {
		t.Errorf("%v, hint %q", err, index.HintOf(err))
	}
	if err := s.Call(t.Context(), "ls", 7, &struct{}{}, wire.Streams{}); index.ClassOf(err) != index.Invalid {
		t.Errorf("a request of the wrong shape: %v", err)
	}
}

func TestTableIsComplete(t *testing.T) {
	for _, name := range []string{"ls", "names", "entries", "du", "diff",
		"tag", "rm", "gc", "optimize", "verify", "import", "export", "info", "seal", "mount", "umount", "stats"} {
		if _, ok := service.Find(name); !ok {
			t.Errorf("operation %s is missing", name)
		}
	}
}

func TestMetrics(t *testing.T) {
	dir := newStore(t)
	serve(t, dir)
	s := connect(t, dir, true)
	res := must[mounts.Result](t)(
		service.AddMount.Do(t.Context(), s, mounts.Request{Dir: "/n", MetricsAddr: "127.0.0.1:0"}, wire.Streams{}),
	)
	must[mounts.Result](t)(
		service.AddMount.Do(t.Context(), s, mounts.Request{Dir: "/o", MetricsAddr: res.Metrics}, wire.Streams{}),
	)
	if _, err := service.AddMount.Do(t.Context(), s, mounts.Request{Dir: "/p", MetricsAddr: "127.0.0.1:1"},
		wire.Streams{}); index.ClassOf(
		err,
	) != index.Exists {
		t.Errorf("metrics elsewhere: %v", err)
	}
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := web.Get("http://" + res.Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gpucr_fs_cache_hits_total 0", `gpucr_fs_mount_reads_total{dir="/m"} 7`,
		`gpucr_fs_mount_read_seconds_p99{dir="/n"}`, "gpucr_fs_free_bytes", "go_goroutines"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

func TestMountAt(t *testing.T) {
	dir := newStore(t)
	started := 0
	start := func(context.Context) (mounts.Result, error) {
		started++
		return mounts.Result{Dir: "/x"}, nil
	}
	must[mounts.Result](t)(client.MountAt(t.Context(), dir, mounts.Request{Dir: "/x"}, start))
	if started != 1 {
		t.Error("no daemon was started")
	}
	serve(t, dir)
	must[mounts.Result](t)(client.MountAt(t.Context(), dir, mounts.Request{Dir: "/x"}, start))
	if started != 1 {
		t.Error("a second daemon was started")
	}
	if _, err := client.MountAt(t.Context(), dir, mounts.Request{Dir: "/y", New: "a", Checkpoint: "b"},
		start); index.ClassOf(
		err,
	) != index.Invalid {
		t.Errorf("both: %v", err)
	}
	if _, err := client.UnmountAt(t.Context(), t.TempDir(), false, nil); index.ClassOf(err) != index.NotFound {
		t.Errorf("umount of nothing: %v", err)
	}
}
