package crash

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const page = 4096

// makeImages writes count image directories under dir: pages that cannot be compressed, pages that can, zero pages and
// small files. They share most of their pages, at different offsets, as dumps of one service do.
func makeImages(t *testing.T, dir string, count int) []string {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 6<<20)
	for i := 0; i < len(noise); i += 8 {
		binary.LittleEndian.PutUint64(noise[i:], r.Uint64())
	}
	var text bytes.Buffer
	for i := 0; text.Len() < 3<<20; i++ {
		fmt.Fprintf(&text, "record %d of session %x\n", i, r.Uint32())
	}
	var dirs []string
	for n := range count {
		own := make([]byte, 2<<20)
		for i := 0; i < len(own); i += 8 {
			binary.LittleEndian.PutUint64(own[i:], r.Uint64())
		}
		d := filepath.Join(dir, fmt.Sprintf("images-%d", n))
		files := map[string][]byte{
			"pages-1.img":        slices.Concat(own, noise, make([]byte, 64*page), text.Bytes()),
			"pages-2.img":        slices.Concat(make([]byte, n*page), text.Bytes()[n*page:], own[:100*page]),
			"core-1.img":         own[:700],
			"inventory.img":      own[5000:5060],
			"empty.img":          {},
			"fs/tmpfs-1.tar.gz":  own[10*page : 30*page+17],
			"fs/deep/ids-11.img": []byte(fmt.Sprint("ids of ", n)),
		}
		for name, b := range files {
			p := filepath.Join(d, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("pages-1.img", filepath.Join(d, "link")); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, d)
	}
	return dirs
}

// tree gives the content of a directory: path to type, permissions and bytes.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var content []byte
		switch {
		case info.Mode().IsRegular():
			content, err = os.ReadFile(p)
		case info.Mode()&fs.ModeSymlink != 0:
			var target string
			target, err = os.Readlink(p)
			content = []byte(target)
		}
		if name != "." {
			all[name] = info.Mode().String() + " " + string(content)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// differences names the entries in which two trees differ.
func differences(got, want map[string]string) []string {
	var names []string
	for name := range maps.Keys(want) {
		if got[name] != want[name] {
			names = append(names, name)
		}
	}
	for name := range maps.Keys(got) {
		if _, ok := want[name]; !ok {
			names = append(names, "+"+name)
		}
	}
	slices.Sort(names)
	return names
}

// exports compares a checkpoint with the directory it was made from.
func exports(t *testing.T, store, name, images string) {
	t.Helper()
	dst := filepath.Join(t.TempDir(), "export")
	defer os.RemoveAll(dst)
	if _, err := program.Run(t.Context(), "export", store, name, dst); err != nil {
		t.Fatalf("checkpoint %s was sealed: %v", name, err)
	}
	if diff := differences(tree(t, dst), tree(t, images)); len(diff) > 0 {
		t.Fatalf("checkpoint %s differs from what was put in: %v", name, diff)
	}
}

// readDamaged reads a file through a mount, piece by piece, and compares it with what it must hold. It gives the number
// of pieces that were answered with EIO; wrong bytes, a short read or another error are failures.
func readDamaged(t *testing.T, mounted, original string) (unreadable int) {
	t.Helper()
	want, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(mounted)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const piece = 64 << 10
	got := make([]byte, piece)
	for off := 0; off < len(want); off += piece {
		end := min(off+piece, len(want))
		n, err := f.ReadAt(got[:end-off], int64(off))
		switch {
		case errors.Is(err, syscall.EIO):
			unreadable++
		case err != nil && !errors.Is(err, io.EOF):
			t.Fatalf("%s at %d: %v, want EIO or the bytes", mounted, off, err)
		}
		if !bytes.Equal(got[:n], want[off:off+n]) {
			t.Fatalf("%s at %d: wrong bytes", mounted, off)
		}
		if err == nil && n < end-off {
			t.Fatalf("%s at %d: short read of %d", mounted, off, n)
		}
		if errors.Is(err, io.EOF) && n < end-off {
			t.Fatalf("%s at %d: early end of file", mounted, off+n)
		}
	}
	return unreadable
}

// regularFiles gives the paths of the regular files under dir, relative to it.
func regularFiles(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	for name, content := range tree(t, dir) {
		if strings.HasPrefix(content, "-") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// unmountStale takes away the mount of a killed daemon, as umount -l does.
func unmountStale(t *testing.T, mnt string) {
	t.Helper()
	if err := unix.Unmount(mnt, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
}
