package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
)

// known counts the nodes below n that the kernel knows.
func known(n *gofs.Inode) int {
	sum := 0
	for _, ch := range n.Children() {
		sum += 1 + known(ch)
	}
	return sum
}

// eventually waits for what the kernel and the janitor do in their own time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// TestRemovedCheckpointsGiveBack removes checkpoints that nobody looks up again: their logs go, and the kernel forgets
// their files.
func TestRemovedCheckpointsGiveBack(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{})
	var all []string
	for i := range 20 {
		name := fmt.Sprintf("dump-%d", i)
		dir := filepath.Join(srv.Dir(), topName, name)
		must(t, os.Mkdir(dir, 0o755))
		for _, f := range []string{"inventory.img", "core-1.img", "dump.log"} {
			write(t, filepath.Join(dir, f), noise(uint64(i), 10_000))
		}
		_, err := srv.Seal(context.Background(), name)
		must(t, err)
		wantFile(t, filepath.Join(dir, "core-1.img"), noise(uint64(i), 10_000))
		all = append(all, name)
	}
	if srv.Stats().ScratchBytes == 0 || known(srv.top.EmbeddedInode()) < 60 {
		t.Fatal("the test looks in the wrong place")
	}
	must(t, s.Remove(context.Background(), all))
	eventually(t, "the logs of removed checkpoints are kept", func() bool { return srv.Stats().ScratchBytes <= grain })
	eventually(
		t,
		"the kernel is not asked to forget removed checkpoints",
		func() bool { return known(srv.top.EmbeddedInode()) == 0 },
	)
}

// TestIdleCheckpointsAreForgotten looks at more files than the mount keeps known. What is open meanwhile goes on, and
// what was forgotten is found again.
func TestIdleCheckpointsAreForgotten(t *testing.T) {
	const perCheckpoint, checkpoints = 1 << 10, 2 * warmFiles >> 10
	s := newStore(t)
	files := map[string][]byte{"inventory.img": []byte("x"), "sub/y": []byte("y")}
	for i := range perCheckpoint - 3 {
		files[fmt.Sprintf("f-%d", i)] = []byte{byte(i)}
	}
	for _, how := range []string{"prune", "names"} {
		t.Run(how, func(t *testing.T) {
			srv := mounted(t, s, Options{})
			dir := func(i int) string { return filepath.Join(srv.Dir(), topName, fmt.Sprintf("%s-%d", how, i)) }
			var held *os.File
			for i := range checkpoints {
				sealed(t, s, filepath.Base(dir(i)), files)
				for p, want := range files {
					if len(want) != 1 || want[0]%16 == 0 || p == "sub/y" {
						wantFile(t, filepath.Join(dir(i), p), want)
					} else if _, err := os.Lstat(filepath.Join(dir(i), p)); err != nil {
						t.Fatal(err)
					}
				}
				if i == 0 {
					var err error
					held, err = os.Open(filepath.Join(dir(0), "f-7"))
					must(t, err)
					defer held.Close()
				}
			}
			if how == "names" {
				img, err := srv.cat.image(filepath.Base(dir(checkpoints - 1)))
				must(t, err)
				d := srv.top.GetChild(img.name)
				before := known(d)
				srv.forgetNames(img, []*gofs.Inode{d}, false)
				eventually(t, "names are not forgotten", func() bool { return known(d) < before/2 || known(d) < 8 })
			}
			eventually(t, "files of checkpoints not used for long stay known", func() bool {
				return known(srv.top.EmbeddedInode()) <= warmFiles+perCheckpoint+checkpoints
			})
			got, err := io.ReadAll(held)
			if err != nil || string(got) != "\x07" {
				t.Errorf("an open file of a forgotten checkpoint reads %q, %v", got, err)
			}
			if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", held.Fd())); err != nil ||
				to != filepath.Join(dir(0), "f-7") {
				t.Errorf("the open file is called %s, %v", to, err)
			}
			for p, want := range files {
				wantFile(t, filepath.Join(dir(0), p), want)
			}
			if _, err := os.Stat(filepath.Join(dir(0), "absent")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("what was never there: %v", err)
			}
		})
	}
}

// TestFilesKeepTheirNumbers compares inode numbers before the seal, after it, and after what is known of the checkpoint
// was given back.
func TestFilesKeepTheirNumbers(t *testing.T) {
	s := newStore(t)
	srv := mounted(t, s, Options{})
	dir := filepath.Join(srv.Dir(), topName, "A")
	must(t, os.MkdirAll(filepath.Join(dir, "d"), 0o755))
	for i := range 20 { // not in the order of their names
		write(t, filepath.Join(dir, fmt.Sprintf("%d.img", (i*7)%20)), []byte{byte(i)})
	}
	write(t, filepath.Join(dir, "d", "x"), []byte("x"))
	must(t, os.Remove(filepath.Join(dir, "3.img")))
	numbers := func() map[string]uint64 {
		out := map[string]uint64{}
		for _, d := range []string{".", "d"} {
			for _, name := range names(t, filepath.Join(dir, d)) {
				fi, err := os.Lstat(filepath.Join(dir, d, name))
				must(t, err)
				out[filepath.Join(d, name)] = inodeOf(fi)
			}
		}
		return out
	}
	before := numbers()
	_, err := srv.Seal(context.Background(), "A")
	must(t, err)
	img, err := srv.cat.image("A")
	must(t, err)
	for _, when := range []string{"after the seal", "after it was given back"} {
		after := numbers()
		for p, ino := range before {
			if after[p] != ino {
				t.Errorf("%s: %s has number %d, had %d", when, p, after[p], ino)
			}
		}
		if len(after) != len(before) {
			t.Errorf("%s: %d files, had %d", when, len(after), len(before))
		}
		img.unload()
		srv.forget(img, false)
	}
}
