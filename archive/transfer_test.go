package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// dump makes a directory that looks like a dump: a sparse pages image, small images, a folder, a link.
func dump(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	noise := rand.NewChaCha8([32]byte{7})
	data := make([]byte, 3<<20+123)
	noise.Read(data)
	write := func(name string, size int64, at ...int64) {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, off := range at {
			if _, err := f.WriteAt(data, off); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "sub/deep"), 0o750); err != nil {
		t.Fatal(err)
	}
	write("inventory.img", 12, 0)
	write("pages-1.img", 48<<20, 4096, 20<<20+4096)
	write("pages-2.img", 5<<20, 1<<20)
	write("empty.img", 0)
	write("hole.img", 1<<20)
	write("sub/deep/x.img", 4097, 0)
	if err := os.Symlink("../sub/deep", filepath.Join(dir, "sub/link")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"sub/deep", "sub", "inventory.img"} {
		when := time.Unix(1700000000, 123456789)
		if err := os.Chtimes(filepath.Join(dir, p), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "inventory.img"), 0o604); err != nil {
		t.Fatal(err)
	}
	return dir
}

// print is what two equal trees have in common. Times of the root and of links are not kept.
func print(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		line := st.Mode().String()
		switch st.Mode().Type() {
		case 0:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			line += string(sum[:]) + st.ModTime().String()
		case fs.ModeDir:
			line += st.ModTime().String()
		case fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line = "link " + target
		}
		rel, _ := filepath.Rel(dir, p)
		all[rel] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func same(t testing.TB, a, b string) {
	t.Helper()
	x, y := print(t, a), print(t, b)
	for p := range x {
		if x[p] != y[p] {
			t.Errorf("%s differs: %q and %q", p, x[p], y[p])
		}
	}
	if len(x) != len(y) {
		t.Errorf("%d entries and %d", len(x), len(y))
	}
}

func get(t testing.TB, s *index.Store, name string) *index.Checkpoint {
	t.Helper()
	c, err := s.Checkpoint(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func diskUsage(t testing.TB, p string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(p, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestRoundTrip takes a tree in as a directory and as each kind of archive, and out again as a directory and as an
// archive.
func TestRoundTrip(t *testing.T) {
	ctx, s, src := t.Context(), newStore(t), dump(t)
	var last Progress
	res, err := Import(
		ctx, s, "dir", src, ImportOptions{Tags: []string{"golden"}, Progress: func(p Progress) { last = p }},
	)
	if err != nil {
		t.Fatal(err)
	}
	if res.Checkpoint.Files != 6 || res.Symlinks != 1 || res.Directories != 2 || res.Checkpoint.State != index.Sealed ||
		len(res.Checkpoint.Tags) != 1 {
		t.Errorf("result %+v", res)
	}
	if last.Done != last.Total || last.Total != res.Checkpoint.Logical {
		t.Errorf("progress ended at %+v of %d", last, res.Checkpoint.Logical)
	}
	out := t.TempDir()
	for _, z := range []Compression{Plain, Gzip, Zstd} {
		file := filepath.Join(out, "x.tar."+string(z))
		if _, err := ExportTarFile(ctx, get(t, s, "dir"), file, z, ExportOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := Import(ctx, s, string(z), file, ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		back := filepath.Join(out, string(z))
		res, err := ExportDir(ctx, get(t, s, string(z)), back, ExportOptions{})
		if err != nil {
			t.Fatal(err)
		}
		same(t, src, back)
		if used := diskUsage(t, filepath.Join(back, "pages-1.img")); used > 8<<20 {
			t.Errorf("the sparse image of 48 MiB takes %d bytes", used)
		}
		if res.Holes < 40<<20 {
			t.Errorf("%d bytes of holes", res.Holes)
		}
	}
	left, err := os.ReadDir(out)
	if err != nil || len(left) != 6 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestImportIncremental(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	base, next := dump(t), dump(t)
	if err := os.Symlink("../elsewhere/base", filepath.Join(next, "parent")); err != nil {
		t.Fatal(err)
	}
	_, err := Import(ctx, s, "next", next, ImportOptions{})
	if index.ClassOf(err) != index.NotFound || !strings.Contains(err.Error(), `"base"`) ||
		!strings.Contains(index.HintOf(err), "--parent") {
		t.Errorf("without the parent: %v, hint %q", err, index.HintOf(err))
	}
	if _, err := Import(ctx, s, "base", base, ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	res, err := Import(ctx, s, "next", next, ImportOptions{})
	if err != nil || res.Checkpoint.Parent != "base" {
		t.Fatalf("%+v, %v", res, err)
	}
	if st, err := get(t, s, "next").Stat("parent"); err != nil || st.Target != "../base" {
		t.Errorf("the link is %+v, %v", st, err)
	}
	if err := s.Remove(ctx, []string{"base"}); index.ClassOf(err) != index.InUse {
		t.Errorf("the parent was removed: %v", err)
	}
	if _, err := Import(ctx, s, "renamed", next, ImportOptions{Parent: "next"}); err != nil {
		t.Error(err)
	}
}

// TestFailuresLeaveNothing makes imports fail; no checkpoint, whole or incomplete, may remain.
func TestFailuresLeaveNothing(t *testing.T) {
	s := newStore(t)
	with := func(change func(dir string) error) string {
		dir := dump(t)
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		src  string
		o    ImportOptions
	}{
		{name: "missing", src: filepath.Join(t.TempDir(), "none")},
		{name: "pipe", src: with(func(d string) error { return syscall.Mkfifo(filepath.Join(d, "p"), 0o600) })},
		{name: "link out", src: with(func(d string) error { return os.Symlink("/etc", filepath.Join(d, "l")) })},
		{name: "empty", src: t.TempDir()},
		{name: "limit", src: dump(t), o: ImportOptions{MaxBytes: 1 << 20}},
		{name: "files", src: dump(t), o: ImportOptions{MaxFiles: 3}},
		{name: "canceled", src: dump(t), ctx: canceled},
		{name: "options", src: dump(t), o: ImportOptions{MaxFiles: -1}},
		{name: "text", src: filepath.Join(dump(t), "pages-2.img")},
	} {
		if c.ctx == nil {
			c.ctx = t.Context()
		}
		if _, err := Import(c.ctx, s, "x", c.src, c.o); err == nil {
			t.Errorf("%s: imported", c.name)
		}
		if list, err := s.Names(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("%s: left behind %+v, %v", c.name, list, err)
		}
	}
	if _, err := Import(t.Context(), s, "../x", dump(t), ImportOptions{}); index.ClassOf(err) != index.Invalid {
		t.Errorf("a name that leaves the store: %v", err)
	}
}

func TestSocketsAreLeftOut(t *testing.T) {
	s, dir := newStore(t), dump(t)
	l, err := net.Listen("unix", filepath.Join(dir, "lazy.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	res, err := Import(t.Context(), s, "x", dir, ImportOptions{})
	if err != nil || len(res.Skipped) != 1 || res.Skipped[0] != "lazy.sock" {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestSourceChanges lets a file grow while it is read.
func TestSourceChanges(t *testing.T) {
	s, dir := newStore(t), dump(t)
	once := false
	_, err := Import(t.Context(), s, "x", dir, ImportOptions{Progress: func(p Progress) {
		if once {
			return
		}
		once = true
		f, err := os.OpenFile(filepath.Join(dir, p.File), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if _, err := io.WriteString(f, "more"); err != nil {
			t.Error(err)
		}
	}})
	if err == nil || !strings.Contains(err.Error(), "changed while it was read") {
		t.Errorf("got %v", err)
	}
}

func TestExportRefusals(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	if _, err := Import(ctx, s, "x", dump(t), ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	c := get(t, s, "x")
	dir := t.TempDir()
	full := filepath.Join(dir, "full")
	if err := os.MkdirAll(filepath.Join(full, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ExportDir(ctx, c, full, ExportOptions{}); index.ClassOf(err) != index.Exists {
		t.Errorf("into a full directory: %v", err)
	}
	if _, err := ExportTarFile(ctx, c, full, Plain, ExportOptions{}); index.ClassOf(err) != index.Exists {
		t.Errorf("over something: %v", err)
	}
	if _, err := ExportDir(ctx, c, filepath.Join(dir, "no/such/place"), ExportOptions{}); err == nil {
		t.Error("into a missing folder")
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := ExportDir(canceled, c, empty, ExportOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := ExportTar(canceled, c, &bytes.Buffer{}, Plain, ExportOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := ExportDir(ctx, c, empty, ExportOptions{}); err != nil {
		t.Errorf("into an empty directory: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestLargeSparse imports 64 GiB of almost nothing.
func TestLargeSparse(t *testing.T) {
	ctx, s, dir := t.Context(), newStore(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "inventory.img"), []byte("inv"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "pages-1.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 64 << 30
	if _, err := f.WriteAt([]byte("end"), size-3); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	res, err := Import(ctx, s, "big", dir, ImportOptions{})
	if err != nil || res.Checkpoint.Logical != size+3 {
		t.Fatalf("%+v, %v", res, err)
	}
	t.Logf("imported %d GiB in %v", size>>30, time.Since(start))
	in, err := get(t, s, "big").Open("pages-1.img")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	buf := make([]byte, 6)
	if _, err := in.ReadAt(buf, size-6); err != nil && err != io.EOF || string(buf) != "\x00\x00\x00end" {
		t.Errorf("the end reads %q, %v", buf, err)
	}
	start = time.Now()
	if _, err := ExportDir(ctx, get(t, s, "big"), filepath.Join(dir, "out"), ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("exported in %v", time.Since(start))
}
