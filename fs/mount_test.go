package fs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
)

func newStore(t *testing.T) *index.Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := index.Open(context.Background(), dir, index.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// mounted mounts s on a fresh directory, and takes it away with the test.
func mounted(t *testing.T, s *index.Store, o Options) *Server {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	}
	srv, err := Mount(context.Background(), s, t.TempDir(), o)
	if err != nil {
		t.Fatal(err)
	}
	settlePoll(t, srv)
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Logf("close: %v", err)
		}
	})
	return srv
}

// settlePoll lets the kernel learn that the mount has no POLL. Go's runtime polls what it opens in a system call that
// keeps its processor, and these tests serve the mount themselves: the collector would wait for that processor, the
// server for the collector, and the system call for the server.
func settlePoll(t *testing.T, srv *Server) {
	t.Helper()
	fd, err := unix.Open(
		filepath.Join(srv.Dir(), ".go-fuse-epoll-hack"), unix.O_RDONLY|unix.O_CLOEXEC, 0,
	) // go-fuse's own file
	must(t, err)
	defer unix.Close(fd)
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err != unix.EINTR { // which says that the kernel was asked, and that nothing is to be read
		must(t, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	must(t, os.WriteFile(path, data, 0o644))
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
		t.Errorf("%s: %d bytes differ from the %d expected", path, len(got), len(want))
	}
}

// settles waits for a file to hold want: the kernel does not wait for the server when the last handle of a directory is
// closed.
func settles(t *testing.T, path, want string) {
	t.Helper()
	var got []byte
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got, _ = os.ReadFile(path); string(got) == want {
			return
		}
	}
	t.Errorf("%s holds %q, want %q", path, got, want)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	l, err := os.ReadDir(dir)
	must(t, err)
	var out []string
	for _, e := range l {
		out = append(out, e.Name())
	}
	slices.Sort(out)
	return out
}

// sealed makes a checkpoint with these files.
func sealed(t *testing.T, s *index.Store, name string, files map[string][]byte) index.Info {
	t.Helper()
	d, err := s.Create(context.Background(), name, index.CreateOptions{})
	must(t, err)
	if files["inventory.img"] == nil { // without one it is no checkpoint
		files = maps.Clone(files)
		files["inventory.img"] = []byte("inventory")
	}
	for p, data := range files {
		if dir := filepath.Dir(p); dir != "." {
			if _, err := d.Stat(dir); err != nil {
				must(t, d.Mkdir(dir, 0o755))
			}
		}
		f, err := d.Create(p, 0o644)
		must(t, err)
		_, err = f.WriteAt(data, 0)
		must(t, err)
		must(t, f.Close())
	}
	info, err := d.Seal(context.Background())
	must(t, err)
	return info
}

func TestSealedContentReadsBack(t *testing.T) {
	s := newStore(t)
	files := map[string][]byte{
		"inventory.img": noise(
			1,
			100,
		), "empty.img": {}, "pages-1.img": append(make([]byte, 3<<20), noise(2, 5<<20+123)...), "sub/a": noise(3, 7),
		"sub-b": noise(4, 9),
	}
	sealed(t, s, "A", files)
	srv := mounted(t, s, Options{Checkpoint: "A"})
	for p, data := range files {
		for _, dir := range []string{srv.Dir(), filepath.Join(srv.Dir(), topName, "A")} {
			wantFile(t, filepath.Join(dir, p), data)
		}
	}
	want := []string{topName, "empty.img", "inventory.img", "pages-1.img", "sub", "sub-b"}
	if got := names(t, srv.Dir()); !slices.Equal(got, want) {
		t.Errorf("root lists %v, want %v", got, want)
	}
	if got := names(t, filepath.Join(srv.Dir(), "sub")); !slices.Equal(got, []string{"a"}) {
		t.Errorf("sub lists %v", got)
	}
	var a, b unix.Stat_t
	must(t, unix.Stat(filepath.Join(srv.Dir(), "pages-1.img"), &a))
	must(t, unix.Stat(filepath.Join(srv.Dir(), topName, "A", "pages-1.img"), &b))
	if a.Ino != b.Ino || a.Ino == 0 {
		t.Errorf("one file has inode numbers %d and %d", a.Ino, b.Ino)
	}
	if a.Size != int64(len(files["pages-1.img"])) || a.Blocks*512 >= a.Size {
		t.Errorf("size %d, blocks %d: want the true size and its zeros to occupy nothing", a.Size, a.Blocks)
	}
	if st := srv.Stats(); st.Reads == 0 || st.ReadBytes < int64(len(files["pages-1.img"])) || st.Opens == 0 ||
		st.ReadP99 == 0 ||
		st.ReadErrors != 0 {
		t.Errorf("stats do not tell of the reads: %+v", st)
	}
	f, err := os.Open(filepath.Join(srv.Dir(), "pages-1.img"))
	must(t, err)
	defer f.Close()
	if off, err := f.Seek(0, unix.SEEK_DATA); err != nil || off != 3<<20 {
		t.Errorf("data starts at %d, %v; want %d", off, err, 3<<20)
	}
	if off, err := f.Seek(0, unix.SEEK_HOLE); err != nil || off != 0 {
		t.Errorf("the first hole is at %d, %v", off, err)
	}
}

func TestSealedContentRefusesWrites(t *testing.T) {
	s := newStore(t)
	sealed(t, s, "A", map[string][]byte{"core-1.img": noise(1, 5000), "sub/x": {1}})
	srv := mounted(t, s, Options{})
	for _, dir := range []string{srv.Dir(), filepath.Join(srv.Dir(), topName, "A")} {
		p := filepath.Join(dir, "core-1.img")
		for what, flags := range map[string]int{"O_RDWR": os.O_RDWR, "O_WRONLY": os.O_WRONLY,
			"O_TRUNC": os.O_WRONLY | os.O_CREATE | os.O_TRUNC} {
			_, err := os.OpenFile(p, flags, 0o644)
			wantErrno(t, err, syscall.EROFS, what)
		}
		wantErrno(t, os.Remove(p), syscall.EROFS, "unlink")
		wantErrno(t, os.Truncate(p, 0), syscall.EROFS, "truncate")
		wantErrno(t, os.Chmod(p, 0o600), syscall.EROFS, "chmod")
		wantErrno(t, os.Rename(p, filepath.Join(dir, "x")), syscall.EROFS, "rename")
		wantErrno(t, syscall.Rmdir(filepath.Join(dir, "sub")), syscall.EROFS, "rmdir")
		wantErrno(t, os.WriteFile(filepath.Join(dir, "core-2.img"), nil, 0o644), syscall.EROFS, "new image")
		wantErrno(t, os.Symlink("../B", filepath.Join(dir, "parent")), syscall.EROFS, "parent link")
	}
	wantErrno(t, syscall.Rmdir(filepath.Join(srv.Dir(), topName, "A")), syscall.EROFS, "rmdir of a checkpoint")
	wantErrno(
		t, os.Rename(filepath.Join(srv.Dir(), topName, "A"), filepath.Join(srv.Dir(), topName, "B")), syscall.EPERM,
		"rename of a checkpoint",
	)
}

func TestDraftIsWrittenAndSealed(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{})
	dir := filepath.Join(srv.Dir(), topName, "A")
	must(t, os.Mkdir(dir, 0o755))
	if _, err := s.Checkpoint("A"); err == nil {
		t.Fatal("an unsealed checkpoint can be opened")
	}
	data := noise(1, 9<<20+77)
	f, err := os.Create(filepath.Join(dir, "pages-1.img"))
	must(t, err)
	_, err = f.Write(data)
	must(t, err)
	part := make([]byte, 100)
	_, err = f.ReadAt(part, 4<<20)
	must(t, err)
	if !bytes.Equal(part, data[4<<20:4<<20+100]) {
		t.Error("what was just written does not read back")
	}
	_, err = f.WriteAt([]byte("patch"), 1<<20)
	must(t, err)
	copy(data[1<<20:], "patch")
	must(t, f.Truncate(9<<20))
	data = data[:9<<20]
	must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 2<<20, 8192))
	clear(data[2<<20 : 2<<20+8192])
	must(t, f.Sync())
	must(t, f.Close())
	wantFile(t, filepath.Join(dir, "pages-1.img"), data)
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	write(t, filepath.Join(dir, "d", "x"), []byte("x"))
	must(t, os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "e")))
	wantFile(t, filepath.Join(dir, "e", "x"), []byte("x"))
	must(t, os.Symlink("e/x", filepath.Join(dir, "l")))
	write(t, filepath.Join(dir, "gone"), []byte("x"))
	must(t, os.Remove(filepath.Join(dir, "gone")))
	must(t, os.Chmod(filepath.Join(dir, "e", "x"), 0o600))
	write(t, filepath.Join(dir, "dump.log"), []byte("log"))
	write(t, filepath.Join(dir, "inventory.img"), []byte("inventory"))

	open, err := os.Open(filepath.Join(dir, "pages-1.img"))
	must(t, err)
	defer open.Close()
	info, err := srv.Seal(context.Background(), "A")
	must(t, err)
	if info.State != index.Sealed {
		t.Errorf("state %s after sealing", info.State)
	}
	got, err := io.ReadAll(open)
	must(t, err)
	if !bytes.Equal(got, data) {
		t.Error("a handle from before the sealing reads other bytes")
	}
	for _, d := range []string{dir, srv.Dir()} {
		wantFile(t, filepath.Join(d, "pages-1.img"), data)
		wantFile(t, filepath.Join(d, "l"), []byte("x"))
		_, err = os.OpenFile(filepath.Join(d, "pages-1.img"), os.O_RDWR, 0)
		wantErrno(t, err, syscall.EROFS, "write after sealing")
	}
	fi, err := os.Stat(filepath.Join(dir, "e", "x"))
	must(t, err)
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", fi.Mode())
	}
	cp, err := s.Checkpoint("A")
	must(t, err)
	var in []string
	for _, fi := range cp.Entries() {
		if fi.Path != "." {
			in = append(in, fi.Path)
		}
	}
	if want := []string{"e", "e/x", "inventory.img", "l", "pages-1.img"}; !slices.Equal(in, want) {
		t.Errorf("the checkpoint holds %v, want %v", in, want)
	}
	wantFile(t, filepath.Join(dir, "dump.log"), []byte("log"))
}

func TestRootOfItsOwnDraft(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{New: "A"})
	write(t, filepath.Join(srv.Dir(), "inventory.img"), []byte("x"))
	wantFile(t, filepath.Join(srv.Dir(), topName, "A", "inventory.img"), []byte("x"))
	wantErrno(t, syscall.Rmdir(filepath.Join(srv.Dir(), topName, "A")), syscall.EBUSY, "rmdir of the draft at the root")
	must(t, srv.Unmount(context.Background()))
	if _, err := s.Checkpoint("A"); err != nil {
		t.Errorf("a complete dump was not sealed at unmounting: %v", err)
	}
}

func TestUnmountSettlesDrafts(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{})
	for _, name := range []string{"empty", "half", "whole"} {
		must(t, os.Mkdir(filepath.Join(srv.Dir(), topName, name), 0o755))
	}
	write(t, filepath.Join(srv.Dir(), topName, "half", "pages-1.img"), []byte("x"))
	write(t, filepath.Join(srv.Dir(), topName, "whole", "inventory.img"), []byte("x"))
	err := srv.Unmount(context.Background())
	if err == nil || !strings.Contains(err.Error(), "half") || strings.Contains(err.Error(), "whole") {
		t.Errorf("unmounting says %v, want the half dump named and no other", err)
	}
	if _, err := s.Checkpoint("whole"); err != nil {
		t.Errorf("the whole dump is not sealed: %v", err)
	}
	all, err := s.Names(context.Background())
	must(t, err)
	for _, info := range all {
		if info.Name == "empty" || info.Name == "half" && info.State == index.Sealed {
			t.Errorf("%s is %s after unmounting", info.Name, info.State)
		}
	}
}

func TestFollowingRootWaitsForOpenDirectory(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{})
	if got := names(t, srv.Dir()); !slices.Equal(got, []string{topName}) {
		t.Errorf("an empty store shows %v", got)
	}
	sealed(t, s, "A", map[string][]byte{"id": []byte("A"), "old": {1}})
	wantFile(t, filepath.Join(srv.Dir(), "id"), []byte("A"))
	d, err := os.Open(srv.Dir())
	must(t, err)
	f, err := os.Open(filepath.Join(srv.Dir(), "id"))
	must(t, err)
	defer f.Close()
	sealed(t, s, "B", map[string][]byte{"id": []byte("B"), "new": {1}})
	wantFile(t, filepath.Join(srv.Dir(), "id"), []byte("A"))
	must(t, d.Close())
	settles(t, filepath.Join(srv.Dir(), "id"), "B")
	if got := names(t, srv.Dir()); !slices.Equal(got, []string{topName, "id", "inventory.img", "new"}) {
		t.Errorf("the root shows %v after moving on", got)
	}
	old, err := io.ReadAll(f)
	if err != nil || string(old) != "A" {
		t.Errorf("an open file changed with the root: %q, %v", old, err)
	}
	must(t, s.Remove(context.Background(), []string{"B"}))
	settles(t, filepath.Join(srv.Dir(), "id"), "A")
	if got := names(t, filepath.Join(srv.Dir(), topName)); !slices.Equal(got, []string{"A"}) {
		t.Errorf("checkpoints listed: %v", got)
	}
}

func TestFixedRootStays(t *testing.T) {
	s := newStore(t)
	sealed(t, s, "A", map[string][]byte{"id": []byte("A")})
	srv := mounted(t, s, Options{Checkpoint: "A"})
	sealed(t, s, "B", map[string][]byte{"id": []byte("B")})
	wantFile(t, filepath.Join(srv.Dir(), "id"), []byte("A"))
	wantFile(t, filepath.Join(srv.Dir(), topName, "B", "id"), []byte("B"))
}

func TestParentLink(t *testing.T) {
	s := newStore(t)
	sealed(t, s, "A", map[string][]byte{"id": []byte("A")})
	srv := mounted(t, s, Options{})
	for name, target := range map[string]string{"B": "../A", "C": srv.Dir() + "/.checkpoints/A/",
		"D": "../../.checkpoints/A"} {
		dir := filepath.Join(srv.Dir(), topName, name)
		must(t, os.Mkdir(dir, 0o755))
		wantErrno(t, os.Symlink("../Z", filepath.Join(dir, "parent")), syscall.ENOENT, "link to nothing")
		wantErrno(t, os.Symlink("/tmp", filepath.Join(dir, "parent")), syscall.EXDEV, "link out of the mount")
		must(t, os.Symlink(target, filepath.Join(dir, "parent")))
		wantErrno(t, os.Symlink(target, filepath.Join(dir, "parent")), syscall.EEXIST, "second link")
		got, err := os.Readlink(filepath.Join(dir, "parent"))
		if err != nil || got != "../A" {
			t.Errorf("%s: link reads %q, %v", target, got, err)
		}
		wantFile(t, filepath.Join(dir, "parent", "id"), []byte("A"))
		write(t, filepath.Join(dir, "inventory.img"), []byte("inventory"))
		info, err := srv.Seal(context.Background(), name)
		must(t, err)
		if info.Parent != "A" {
			t.Errorf("parent recorded is %q", info.Parent)
		}
		wantErrno(t, os.Remove(filepath.Join(dir, "parent")), syscall.EROFS, "unlink after sealing")
		got, err = os.Readlink(filepath.Join(srv.Dir(), "parent"))
		if err != nil || got != ".checkpoints/A" {
			t.Errorf("link at the root reads %q, %v", got, err)
		}
		wantFile(t, filepath.Join(srv.Dir(), "parent", "id"), []byte("A"))
	}
	dir := filepath.Join(srv.Dir(), topName, "E")
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.Symlink("../A", filepath.Join(dir, "parent")))
	wantErrno(t, syscall.Rmdir(dir), syscall.ENOTEMPTY, "rmdir with a parent link")
	must(t, os.Remove(filepath.Join(dir, "parent")))
	must(t, syscall.Rmdir(dir))
}

// TestParentRenamed gives a parent another name, and its old one to another checkpoint: the links of those that build
// on it lead to it as before, that of images in a folder of their own too.
func TestParentRenamed(t *testing.T) {
	s := newStore(t)
	sealed(t, s, "A", map[string][]byte{"id": []byte("A")})
	d, err := s.Create(context.Background(), "B", index.CreateOptions{})
	must(t, err)
	must(t, d.SetParent("A"))
	must(t, d.Mkdir("checkpoint", 0o755))
	must(t, d.Symlink("../../A", "checkpoint/parent"))
	f, err := d.Create("checkpoint/inventory.img", 0o644)
	must(t, err)
	must(t, f.Close())
	_, err = d.Seal(context.Background())
	must(t, err)
	srv := mounted(t, s, Options{})
	b := filepath.Join(srv.Dir(), topName, "B")
	for _, link := range []string{"parent", "checkpoint/parent"} {
		wantFile(t, filepath.Join(b, link, "id"), []byte("A"))
	}
	must(t, s.Rename(context.Background(), "A", "older"))
	sealed(t, s, "A", map[string][]byte{"id": []byte("another")})
	for _, link := range []string{"parent", "checkpoint/parent"} {
		wantFile(t, filepath.Join(b, link, "id"), []byte("A"))
	}
}

func inodeOf(fi os.FileInfo) uint64 { return fi.Sys().(*syscall.Stat_t).Ino }

// TestRootIsACheckpoint has a store that holds folders which are no checkpoints, sealed by an earlier version: the root
// follows the last that is one.
func TestRootIsACheckpoint(t *testing.T) {
	s := newStore(t)
	sealFolder := func(name, file string) {
		d, err := s.Create(context.Background(), name, index.CreateOptions{})
		must(t, err)
		if dir := filepath.Dir(file); dir != "." {
			must(t, d.Mkdir(dir, 0o755))
		}
		f, err := d.Create(file, 0o644)
		must(t, err)
		_, err = f.WriteAt([]byte(name), 0)
		must(t, err)
		must(t, f.Close())
		_, err = d.Seal(context.Background())
		must(t, err)
	}
	srv := mounted(t, s, Options{})
	sealFolder("etc", "passwd")
	if got := names(t, srv.Dir()); !slices.Equal(got, []string{topName}) {
		t.Errorf("the root shows %v of what is no checkpoint", got)
	}
	sealFolder("A", "inventory.img")
	wantFile(t, filepath.Join(srv.Dir(), "inventory.img"), []byte("A"))
	sealFolder("failed", "pages-1.img")
	wantFile(t, filepath.Join(srv.Dir(), "inventory.img"), []byte("A"))
	wantFile(t, filepath.Join(srv.Dir(), topName, "failed", "pages-1.img"), []byte("failed"))
	sealFolder("engine", "checkpoint/inventory.img")
	wantFile(t, filepath.Join(srv.Dir(), "checkpoint", "inventory.img"), []byte("engine"))
	must(t, s.Remove(context.Background(), []string{"engine", "A"}))
	if got := names(t, srv.Dir()); !slices.Equal(got, []string{topName}) {
		t.Errorf("the root shows %v after the checkpoints were removed", got)
	}
}
