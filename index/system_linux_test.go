package index

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/fault"
)

// fewFiles mounts a file system that takes few files, and gives what leaves room for just n more.
func fewFiles(t *testing.T) (dir string, leave func(n int), free func()) {
	t.Helper()
	dir = t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=200m,nr_inodes=200"))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	ballast := filepath.Join(dir, "ballast")
	free = func() { must(t, os.RemoveAll(ballast)) }
	leave = func(n int) {
		free()
		must(t, os.Mkdir(ballast, 0o700))
		var st unix.Statfs_t
		must(t, unix.Statfs(dir, &st))
		for i := range int(st.Ffree) - n {
			must(t, os.WriteFile(filepath.Join(ballast, fmt.Sprint(i)), nil, 0o600))
		}
	}
	return dir, leave, free
}

// fullChild opens, changes and repairs a store on a file system that is full. Badger leaves goroutines behind where it
// does not open, and might end the process. It tells of each step how it ended.
func fullChild(dir string) error {
	o := Options{Logger: slog.New(slog.DiscardHandler), FreeFloor: 1, CacheSize: 8 << 20}
	tell := func(what string, err error) {
		switch {
		case err == nil:
			fmt.Println("done:", what)
		case fault.IsNoSpace(err) && !strings.Contains(HintOf(err), "repair"):
			fmt.Println("refused:", what)
		default:
			fmt.Printf("%s: class %s: %v (hint: %s)\n", what, ClassOf(err), err, HintOf(err))
		}
	}
	s, err := Open(context.Background(), dir, o)
	tell("open", err)
	if err == nil {
		tell("label", s.Label("kept", map[string]string{"room": "none"}))
		tell("close", s.Close())
	}
	_, err = Repair(context.Background(), dir, o)
	tell("repair", err)
	return nil
}

// TestNoRoomForFiles opens, changes and repairs stores on a file system that has bytes left, and no room for n more
// files. That is no damage, and what there was is there when there is room again.
func TestNoRoomForFiles(t *testing.T) {
	disk, leave, free := fewFiles(t)
	dir := filepath.Join(disk, "store")
	must(t, Init(dir, InitOptions{PackSize: 16 << 20}))
	files := secretFiles()
	s := openTestStore(t, dir, testOptions(t))
	write(t, s, "kept", files)
	must(t, s.Close())
	refused := 0
	for n := range 14 {
		leave(n)
		out, err := child(t, "full", dir)
		if err != nil || !strings.Contains(out, ": repair\n") {
			t.Fatalf("room for %d files: the process ended: %v, %s", n, err, out)
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "refused: ") {
				refused++
			} else if !strings.HasPrefix(line, "done: ") {
				t.Errorf("room for %d files: %s", n, line)
			}
		}
		free()
		s = openTestStore(t, dir, testOptions(t))
		mustHold(t, s, "kept", files)
		must(t, s.Close())
	}
	if refused < 8 {
		t.Errorf("only %d were refused: the test tries too little", refused)
	}
}
