package fs

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// The root shows other contents for some files and leads by its link "parent" to what the checkpoint has.
func TestInstead(t *testing.T) {
	s := newStore(t)
	sealed(t, s, "A", map[string][]byte{"inventory.img": []byte("A"), "pagemap-1.img": []byte("old")})
	sealed(t, s, "B", map[string][]byte{
		"inventory.img": []byte("B"), "pagemap-1.img": []byte("map"), "pages-1.img": make([]byte, 8192)})
	srv := mounted(t, s, Options{Checkpoint: "B"})
	srv.Instead(map[string][]byte{"pagemap-1.img": []byte("another map")}, true)
	dir := srv.Dir()
	wantFile(t, filepath.Join(dir, "pagemap-1.img"), []byte("another map"))
	wantFile(t, filepath.Join(dir, "inventory.img"), []byte("B"))
	wantFile(t, filepath.Join(dir, "parent", "pagemap-1.img"), []byte("map"))
	wantFile(t, filepath.Join(dir, topName, "B", "pagemap-1.img"), []byte("map"))
	wantFile(t, filepath.Join(dir, topName, "A", "pagemap-1.img"), []byte("old"))
	st, err := os.Stat(filepath.Join(dir, "pagemap-1.img"))
	must(t, err)
	if st.Size() != int64(len("another map")) || !st.Mode().IsRegular() {
		t.Errorf("%v, %d bytes", st.Mode(), st.Size())
	}
	_, err = os.OpenFile(filepath.Join(dir, "pagemap-1.img"), os.O_WRONLY, 0)
	wantErrno(t, err, syscall.EROFS, "write to it")
	// A page file is one file, however it is reached: the kernel keeps its pages once.
	var inodes []uint64
	for _, p := range []string{"pages-1.img", "parent/pages-1.img"} {
		var st syscall.Stat_t
		must(t, syscall.Stat(filepath.Join(dir, p), &st))
		inodes = append(inodes, st.Ino)
	}
	if inodes[0] != inodes[1] {
		t.Errorf("pages-1.img has inodes %v", inodes)
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{topName, "inventory.img", "pagemap-1.img", "pages-1.img", "parent"}
	if !slices.Equal(names, want) {
		t.Errorf("it lists %q", names)
	}
}
