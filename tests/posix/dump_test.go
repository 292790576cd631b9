package posix

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openat opens as CRIU does: relative to a directory handle.
func openat(t *testing.T, dir int, name string, flags int, mode uint32) int {
	t.Helper()
	fd, err := unix.Openat(dir, name, flags, mode)
	if err != nil {
		t.Fatalf("openat %s: %v", name, err)
	}
	return fd
}

func writeAll(t *testing.T, fd int, data []byte) {
	t.Helper()
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		must(t, err)
		data = data[n:]
	}
}

// Images are made O_WRONLY|O_CREAT|O_TRUNC below a directory handle and written front to back; those of plugins without
// O_TRUNC; pages-N is O_RDWR with --auto-dedup. A second dump into the same draft starts every file anew.
func TestDumpOpensAndWritesImages(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	fd := m.opendir(dir)
	files := map[string][]byte{"inventory.img": noise(1, 41), "core-1.img": noise(2, 4096),
		"amdgpu-kfd-1.img": noise(3, 300_000), "pages-1.img": noise(4, 3<<20+5)}
	flags := map[string]int{"amdgpu-kfd-1.img": unix.O_WRONLY | unix.O_CREAT,
		"pages-1.img": unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC}
	for round := range 2 {
		for name, data := range files {
			how, ok := flags[name]
			if !ok {
				how = unix.O_WRONLY | unix.O_CREAT | unix.O_TRUNC
			}
			img := openat(t, fd, name, how, 0o644)
			if round == 0 {
				writeAll(t, img, noise(99, 5000))
				must(t, unix.Ftruncate(img, 0))
				_, err := unix.Seek(img, 0, 0)
				must(t, err)
			}
			for len(data) > 0 {
				n := min(len(data), 4096)
				writeAll(t, img, data[:n])
				data = data[n:]
			}
			must(t, unix.Close(img))
		}
	}
	m.seal("A")
	for name, data := range files {
		wantFile(t, filepath.Join(dir, name), data)
		fi, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if fi.Mode().Perm() != 0o644 || fi.Size() != int64(len(data)) {
			t.Errorf("%s is %v of %d bytes", name, fi.Mode(), fi.Size())
		}
	}
}

// Pages come by splice from a pipe, up to 1 MiB at a time.
func TestDumpSplicesPages(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	data := noise(1, 24<<20)
	img := openat(t, m.opendir(dir), "pages-1.img", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	var p [2]int
	must(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	if _, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, 1<<20); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer unix.Close(p[1])
		for b := data; len(b) > 0; {
			n, err := unix.Write(p[1], b)
			if err != nil {
				return
			}
			b = b[n:]
		}
	}()
	for {
		n, err := unix.Splice(p[0], nil, img, nil, 1<<20, unix.SPLICE_F_MOVE)
		must(t, err)
		if n == 0 {
			break
		}
	}
	unix.Close(p[0])
	must(t, unix.Close(img))
	m.seal("A")
	wantFile(t, filepath.Join(dir, "pages-1.img"), data)
	if st := m.stats(); st.WriteBytes != int64(len(data)) || st.Writes > 200 {
		t.Errorf("%d bytes came in %d writes; the kernel should gather up to 1 MiB", st.WriteBytes, st.Writes)
	}
}

// The log is opened O_APPEND, 0600, and written in small pieces by criu, its children and the parasite at once. It is
// no part of the checkpoint.
func TestDumpLogsFromSeveralProcesses(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	for _, name := range []string{"dump.log", "out"} {
		log := openat(t, m.opendir(dir), name, unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_APPEND, 0o600)
		f := os.NewFile(uintptr(log), name)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				cmd := exec.Command(
					"sh",
					"-c",
					`i=0
					while [ $i -lt 450 ]; do
						echo "(00.012345) page-xfer: a line of a log as criu writes it"
						i=$((i+1))
					done`,
				)
				cmd.Stdout = f
				if err := cmd.Run(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		must(t, f.Close())
		text, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		if lines := bytes.Count(text,
			[]byte("(00.012345) page-xfer: a line of a log as criu writes it\n")); lines != 1800 ||
			len(text) != lines*57 {
			t.Errorf("%s has %d whole lines in %d bytes, want 1800", name, lines, len(text))
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "core-1.img"), []byte("x"), 0o644))
	m.seal("A")
	m.stop()
	m = start(t, serveArgs{Store: m.store, Checkpoint: "A"})
	l, err := os.ReadDir(m.dir)
	must(t, err)
	if len(l) != 2 || l[0].Name() != ".checkpoints" || l[1].Name() != "core-1.img" {
		t.Errorf("the checkpoint holds %v, want its image and no log", l)
	}
}

// An image that was never written is unlinked at close, and one may be unlinked while still open.
func TestDumpUnlinksUnwrittenImages(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	d := m.opendir(dir)
	img := openat(t, d, "timens-0.img", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	must(t, unix.Unlinkat(d, "timens-0.img", 0))
	var st unix.Stat_t
	must(t, unix.Fstat(img, &st))
	if st.Nlink != 0 {
		t.Errorf("an unlinked image has %d links", st.Nlink)
	}
	must(t, unix.Close(img))
	_, err := unix.Openat(d, "timens-0.img", unix.O_RDONLY, 0)
	wantErrno(t, err, unix.ENOENT, "open after unlink")
	must(t, os.WriteFile(filepath.Join(dir, "core-1.img"), nil, 0o644))
	m.seal("A")
	wantErrno(t, unix.Unlinkat(d, "core-1.img", 0), unix.EROFS, "unlink after sealing")
}

// tar and ip get image files as their standard output at dump, as their standard input at restore.
func TestChildrenInheritImages(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	src := t.TempDir()
	data := noise(1, 5<<20)
	must(t, os.WriteFile(filepath.Join(src, "f"), data, 0o644))
	tar := func(img *os.File, args ...string) {
		t.Helper()
		cmd := exec.Command("tar", args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = img, img, os.Stderr
		must(t, cmd.Run())
		must(t, img.Close())
	}
	img, err := os.OpenFile(filepath.Join(dir, "tmpfs-1.tar.gz.img"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	must(t, err)
	tar(img, "-C", src, "-cz", "f")
	m.seal("A")
	img, err = os.Open(filepath.Join(dir, "tmpfs-1.tar.gz.img"))
	must(t, err)
	out := t.TempDir()
	tar(img, "-C", out, "-xz")
	wantFile(t, filepath.Join(out, "f"), data)
}

// --prev-images-dir: faccessat, symlinkat, and at restore fstatat without following, openat and the same below.
func TestIncrementalDumpLinksItsParent(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	m.sealed("A", map[string][]byte{"pages-1.img": noise(1, 10_000)})
	d := m.opendir(m.draft("B"))
	must(t, unix.Faccessat(d, "../A", unix.R_OK, 0))
	must(t, unix.Symlinkat("../A", d, "parent"))
	wantErrno(t, unix.Symlinkat("../A", d, "parent"), unix.EEXIST, "second parent link")
	must(t, os.WriteFile(filepath.Join(m.dir, ".checkpoints", "B", "pages-1.img"), noise(2, 5000), 0o644))
	must(t, os.WriteFile(filepath.Join(m.dir, ".checkpoints", "B", "inventory.img"), []byte("inventory"), 0o644))
	m.seal("B")
	m.stop()

	m = start(t, serveArgs{Store: m.store})
	for _, dir := range []string{m.dir, filepath.Join(m.dir, ".checkpoints", "B")} {
		d = m.opendir(dir)
		var st unix.Stat_t
		must(t, unix.Fstatat(d, "parent", &st, unix.AT_SYMLINK_NOFOLLOW))
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			t.Errorf("%s/parent is no symlink: %o", dir, st.Mode)
		}
		p := openat(t, d, "parent", unix.O_RDONLY, 0)
		must(t, unix.Fstatat(p, "pages-1.img", &st, 0))
		if st.Size != 10_000 {
			t.Errorf("the parent's pages have %d bytes", st.Size)
		}
		wantErrno(t, unix.Fstatat(p, "parent", &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT, "parent of the first dump")
		must(t, unix.Close(p))
	}
}

// Sockets and pidfiles are made wherever the work directory is: --stream in the image directory, lazy-pages.socket in
// the work directory.
func TestSocketsAnywhere(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	m.sealed("A", map[string][]byte{"x.img": {1}})
	for _, dir := range []string{m.dir, filepath.Join(m.dir, ".checkpoints", "A"), m.draft("B"),
		filepath.Join(m.dir, ".checkpoints")} {
		for _, name := range []string{"lazy-pages.socket", "streamer-serve.sock", "any"} {
			p := filepath.Join(dir, name)
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p})
			must(t, err)
			l.SetUnlinkOnClose(false)
			c, err := net.Dial("unix", p)
			must(t, err)
			c.Close()
			must(t, l.Close())
			_, err = net.ListenUnix("unix", &net.UnixAddr{Name: p})
			wantErrno(t, err, unix.EADDRINUSE, "bind over a stale socket")
			must(t, os.Remove(p))
		}
		f, err := os.OpenFile(filepath.Join(dir, "criu.pid"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		must(t, err)
		fmt.Fprint(f, os.Getpid())
		must(t, f.Close())
		wantFile(t, filepath.Join(dir, "criu.pid"), fmt.Append(nil, os.Getpid()))
	}
	wantErrno(t, unix.Mknod(filepath.Join(m.dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), unix.EPERM,
		"device node")
	must(t, os.WriteFile(filepath.Join(m.dir, ".checkpoints", "B", "inventory.img"), []byte{1}, 0o644))
}

// CRIU closing stats-dump, its last act in a dump, seals; copying an old image directory, which closes a file of that
// name in the middle, does not.
func TestClosingStatsDumpSeals(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	src := t.TempDir()
	for _, name := range []string{"inventory.img", "stats-dump", "tty-info.img"} {
		must(t, os.WriteFile(filepath.Join(src, name), []byte(name), 0o644))
	}
	for _, name := range []string{"inventory.img", "stats-dump", "tty-info.img"} {
		run(t, "cp", filepath.Join(src, name), dir)
	}
	criu := filepath.Join(src, "criu")
	must(t, os.WriteFile(criu, []byte("#!/bin/sh\nprintf statistics >\"$1/stats-dump\"\n"), 0o755))
	run(t, criu, dir)
	wantErrno(t, os.WriteFile(filepath.Join(dir, "late.img"), nil, 0o644), unix.EROFS, "write after the dump")
	for name, want := range map[string]string{"inventory.img": "inventory.img", "stats-dump": "statistics",
		"tty-info.img": "tty-info.img"} {
		wantFile(t, filepath.Join(m.dir, name), []byte(want))
	}
	must(t, os.WriteFile(filepath.Join(dir, "dump.log"), []byte("log"), 0o600))
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// An image outside of a checkpoint would be lost at unmounting, so it is refused at once.
func TestDumpIntoNoCheckpointIsRefused(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	for _, dir := range []string{m.dir, filepath.Join(m.dir, ".checkpoints")} {
		_, err := unix.Open(filepath.Join(dir, "core-1.img"), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
		wantErrno(t, err, unix.EROFS, "image in "+dir)
	}
	for name, want := range map[string]syscall.Errno{".hidden": unix.EINVAL, "with space": unix.EINVAL} {
		wantErrno(t, os.Mkdir(filepath.Join(m.dir, ".checkpoints", name), 0o755), want, "checkpoint named "+name)
	}
	dir := m.draft("A")
	wantErrno(t, os.Mkdir(dir, 0o755), unix.EEXIST, "second draft of one name")
	must(t, os.Remove(dir))
	m.draft("A")
	must(t, os.WriteFile(filepath.Join(dir, "pages-1.img"), []byte("half a dump"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "dump.log"), []byte("failed"), 0o600))
	wantErrno(t, syscall.Rmdir(dir), unix.ENOTEMPTY, "rmdir of half a dump")
	must(t, os.RemoveAll(dir))
	m.draft("A")
}
