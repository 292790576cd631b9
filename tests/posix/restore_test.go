package posix

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/fs"
)

// Private pages come by one preadv over everything, up to 1,024 iovecs, straight into the memory they belong to. A
// short answer is repeated from where it ended, as the restorer does.
func TestRestoreReadsPagesByPreadv(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	data := noise(1, 40<<20)
	clear(data[5<<20 : 9<<20])
	m.sealed("A", map[string][]byte{"pages-1.img": data})
	m.stop()
	m = start(t, serveArgs{Store: m.store, Checkpoint: "A"})
	img := openat(t, m.opendir(m.dir), "pages-1.img", unix.O_RDONLY, 0)
	defer unix.Close(img)
	got := make([]byte, len(data))
	const piece = 40 << 10
	for off := 0; off < len(got); {
		var iov [][]byte
		for at := off; at < len(got) && len(iov) < 1024; at += piece {
			iov = append(iov, got[at:min(at+piece, len(got))])
		}
		n, err := unix.Preadv(img, iov, int64(off))
		must(t, err)
		if n == 0 {
			t.Fatalf("end of file at %d of %d", off, len(got))
		}
		off += n
	}
	if !bytes.Equal(got, data) {
		t.Error("the pages read are not the pages written")
	}
	if n, err := unix.Pread(img, got[:10], int64(len(data))); n != 0 || err != nil {
		t.Errorf("reading at the end gives %d bytes, %v", n, err)
	}
}

// Small images are read one 4 KiB page each; pagemap's size is taken from fstat.
func TestRestoreReadsSmallImages(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	files := map[string][]byte{}
	for i := range 300 {
		files[fmt.Sprintf("core-%d.img", i)] = noise(byte(i), 1+i*37)
	}
	dir := m.sealed("A", files)
	d := m.opendir(dir)
	buf := make([]byte, 4096)
	for name, data := range files {
		img := openat(t, d, name, unix.O_RDONLY, 0)
		var st unix.Stat_t
		must(t, unix.Fstat(img, &st))
		if st.Size != int64(len(data)) {
			t.Errorf("%s: fstat says %d bytes, want %d", name, st.Size, len(data))
		}
		n, err := unix.Read(img, buf)
		must(t, err)
		if !bytes.Equal(buf[:n], data[:min(4096, len(data))]) {
			t.Errorf("%s differs", name)
		}
		must(t, unix.Close(img))
	}
	_, err := unix.Openat(d, "absent.img", unix.O_RDONLY, 0)
	wantErrno(t, err, unix.ENOENT, "an image that is not there")
}

// A damaged chunk is EIO and stays EIO. An end of file before the end makes CRIU's restorer spin for ever, so the size
// must not shrink either.
func TestDamageIsAnErrorNeverAnEnd(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	data := noise(1, 24<<20)
	m.sealed("A", map[string][]byte{"pages-1.img": data})
	m.stop()
	packs, err := filepath.Glob(filepath.Join(m.store, "packs", "*"))
	must(t, err)
	damaged := false
	for _, p := range packs {
		b, err := os.ReadFile(p)
		must(t, err)
		if at := bytes.Index(b, data[12<<20:12<<20+4096]); at >= 0 {
			b[at+100] ^= 1
			must(t, os.WriteFile(p, b, 0o600))
			damaged = true
		}
	}
	if !damaged {
		t.Fatal("found no pack with the pages in it")
	}
	m = start(t, serveArgs{Store: m.store})
	img := openat(t, m.opendir(m.dir), "pages-1.img", unix.O_RDONLY, 0)
	defer unix.Close(img)
	for range 3 {
		got := make([]byte, len(data))
		off := 0
		for off < len(got) {
			n, err := unix.Pread(img, got[off:], int64(off))
			if err != nil {
				wantErrno(t, err, unix.EIO, "reading the damage")
				break
			}
			if n == 0 {
				t.Fatalf("end of file at %d of %d", off, len(got))
			}
			off += n
		}
		if off > 12<<20 || !bytes.Equal(got[:off], data[:off]) {
			t.Fatalf("%d bytes were read, past the damage or wrong", off)
		}
		tail := make([]byte, 1<<20)
		if n, err := unix.Pread(img, tail, 20<<20); n != len(tail) || err != nil ||
			!bytes.Equal(tail, data[20<<20:21<<20]) {
			t.Errorf("sound bytes behind the damage: %d, %v", n, err)
		}
		var st unix.Stat_t
		must(t, unix.Fstat(img, &st))
		if st.Size != int64(len(data)) {
			t.Fatalf("the size shrank to %d", st.Size)
		}
	}
	if st := m.stats(); st.ReadErrors == 0 {
		t.Error("the errors are not counted")
	}
}

// --auto-dedup opens pages-N for writing and punches holes. A sealed checkpoint refuses the open.
func TestHolePunchingOfSealedContentIsRefused(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	data := noise(1, 1<<20)
	must(t, os.WriteFile(filepath.Join(dir, "pages-1.img"), data, 0o644))
	img := openat(t, m.opendir(dir), "pages-1.img", unix.O_RDWR, 0)
	must(t, unix.Fallocate(img, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 4096, 8192))
	clear(data[4096 : 4096+8192])
	m.seal("A")
	wantErrno(t, unix.Fallocate(img, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, 4096), unix.EROFS,
		"punch through a handle from before")
	_, err := unix.Pwrite(img, []byte("x"), 0)
	wantErrno(t, err, unix.EROFS, "write through a handle from before")
	unix.Close(img)
	for _, flags := range []int{unix.O_RDWR, unix.O_WRONLY} {
		_, err := unix.Open(filepath.Join(dir, "pages-1.img"), flags, 0)
		wantErrno(t, err, unix.EROFS, "open for punching")
	}
	wantFile(t, filepath.Join(dir, "pages-1.img"), data)
}

// A restore writes its log, statistics and pidfile into the image directory, over those that an earlier one left in an
// imported checkpoint.
func TestRestoreWritesBesideSealedImages(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	must(t, os.WriteFile(filepath.Join(dir, "pages-1.img"), noise(1, 5000), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "old"), []byte("an old log\n"), 0o644))
	must(t, os.Rename(filepath.Join(dir, "old"), filepath.Join(dir, "restore.log")))
	must(t, os.WriteFile(filepath.Join(m.dir, ".checkpoints", "A", "inventory.img"), []byte("inventory"), 0o644))
	m.seal("A")
	for _, d := range []string{m.dir, dir} {
		log := filepath.Join(d, "restore.log")
		wantFile(t, log, []byte("an old log\n"))
		f, err := os.OpenFile(log, os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		f.WriteString("more\n")
		must(t, f.Close())
		wantFile(t, log, []byte("an old log\nmore\n"))
		f, err = os.OpenFile(log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
		must(t, err)
		f.WriteString("a new log\n")
		must(t, f.Close())
		wantFile(t, log, []byte("a new log\n"))
		for _, name := range []string{"stats-restore", "pidfile", "out", "sub.d"} {
			must(t, os.WriteFile(filepath.Join(d, name), []byte(name), 0o644))
			must(t, os.Rename(filepath.Join(d, name), filepath.Join(d, "renamed")))
			wantFile(t, filepath.Join(d, "renamed"), []byte(name))
			must(t, os.Remove(filepath.Join(d, "renamed")))
		}
	}
	m.stop()
	m = start(t, serveArgs{Store: m.store})
	wantFile(t, filepath.Join(m.dir, "restore.log"), []byte("an old log\n"))
	wantErrno(t, os.Remove(filepath.Join(m.dir, "restore.log")), unix.EROFS, "unlink of a sealed log")
}

// A restore opens its files one by one; a dump that is sealed meanwhile must not mix into it.
func TestRestoreKeepsToOneCheckpoint(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	m.sealed("A", map[string][]byte{"inventory.img": []byte("A"), "pages-1.img": []byte("A")})
	d, err := unix.Open(m.dir, unix.O_RDONLY, 0)
	must(t, err)
	read := func(name string) string {
		img := openat(t, d, name, unix.O_RDONLY, 0)
		defer unix.Close(img)
		b := make([]byte, 10)
		n, err := unix.Read(img, b)
		must(t, err)
		return string(b[:n])
	}
	if got := read("inventory.img"); got != "A" {
		t.Fatalf("the restore begins with %s", got)
	}
	m.sealed("B", map[string][]byte{"inventory.img": []byte("B"), "pages-1.img": []byte("B")})
	if got := read("pages-1.img"); got != "A" {
		t.Errorf("the restore goes on with %s", got)
	}
	must(t, unix.Close(d))
	eventually(t, "the root moves on", func() bool {
		b, err := os.ReadFile(filepath.Join(m.dir, "pages-1.img"))
		return err == nil && string(b) == "B"
	})
}

// What the kernel has cached it does not ask for again, and it reads ahead in large pieces.
func TestKernelCachesAndReadsAhead(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	m.sealed("A", map[string][]byte{"pages-1.img": noise(1, 32<<20)})
	m.stop()
	m = start(t, serveArgs{Store: m.store})
	wantFile(t, filepath.Join(m.dir, "pages-1.img"), noise(1, 32<<20))
	first := m.stats()
	if first.ReadBytes < 32<<20 || first.Reads > 64 {
		t.Errorf("32 MiB took %d requests for %d bytes", first.Reads, first.ReadBytes)
	}
	// Another test of this machine may have the kernel drop its caches meanwhile.
	for try, before := 1, first.Reads; ; try++ {
		wantFile(t, filepath.Join(m.dir, ".checkpoints", "A", "pages-1.img"), noise(1, 32<<20))
		again := m.stats()
		if again.Reads == before {
			break
		}
		if try == 5 {
			t.Fatalf("what was read %d times is asked for again, in %d pieces", try, again.Reads-before)
		}
		before = again.Reads
	}
}

// Writes ask for security.capability each time, unless they are told once that there is no such thing.
func TestExtendedAttributesAreRefusedOnce(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	p := filepath.Join(m.sealed("A", map[string][]byte{"x.img": {1}}), "x.img")
	_, err := unix.Getxattr(p, "security.capability", make([]byte, 64))
	wantErrno(t, err, unix.EOPNOTSUPP, "getxattr")
	wantErrno(t, unix.Setxattr(p, "user.x", []byte{1}, 0), unix.EOPNOTSUPP, "setxattr")
}

// df and cp ask how much room there is.
func TestStatfs(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	var st, below unix.Statfs_t
	must(t, unix.Statfs(m.dir, &st))
	must(t, unix.Statfs(m.store, &below))
	if st.Type != 0x65735546 || st.Blocks != below.Blocks || st.Bsize != below.Bsize || st.Namelen != 255 {
		t.Errorf("statfs says %+v, of the store %+v", st, below)
	}
}

// A killed server leaves a stale mount, which the next one clears; a live one is not mounted over; what was sealed is
// there.
func TestKilledServer(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	m.sealed("A", map[string][]byte{"pages-1.img": noise(1, 100_000)})
	m.draft("B")
	dir := m.dir
	if held, ok, err := fs.Mounted(dir); !ok || err != nil || held != m.store {
		t.Errorf("mountinfo tells of %q, %v, %v", held, ok, err)
	}
	if cleared, err := fs.ClearStale(dir); cleared || err != nil {
		t.Errorf("a live mount was cleared: %v, %v", cleared, err)
	}
	m.kill()
	_, err := os.Stat(dir)
	wantErrno(t, err, unix.ENOTCONN, "the mount of a killed server")
	m = start(t, serveArgs{Store: m.store, Dir: dir})
	wantFile(t, filepath.Join(dir, "pages-1.img"), noise(1, 100_000))
	wantErrno(t, os.Mkdir(filepath.Join(dir, ".checkpoints", "B"), 0o755), unix.EEXIST,
		"draft of an incomplete one's name")
	m.stop()
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	if _, ok, _ := fs.Mounted(dir); ok {
		t.Error("still mounted after unmounting")
	}
}
