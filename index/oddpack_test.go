package index

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// TestPackThatIsNoFile has a folder, a pipe or nothing in the place of a pack: that is damage of the pack, told by all
// who look, and the rest of the store goes on.
func TestPackThatIsNoFile(t *testing.T) {
	t.Parallel()
	for kind, put := range map[string]func(path string) error{
		"folder": func(path string) error { return os.MkdirAll(filepath.Join(path, "sub"), 0o700) },
		"pipe":   func(path string) error { return unix.Mkfifo(path, 0o600) },
		"device": func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) },
		"gone":   func(string) error { return nil },
	} {
		for which, n := range map[string]uint32{"first": 1, "newest": 3} {
			t.Run(kind+" "+which, func(t *testing.T) {
				s, all := threeCheckpoints(t)
				path := s.chunks.Packs.PackPath(n)
				if err := os.Rename(path, path+"-kept"); err != nil {
					t.Fatal(err)
				}
				if err := put(path); err != nil {
					t.Fatal(err)
				}
				hurt := map[uint32]string{1: "a", 3: "c"}[n]
				s = openTestStore(t, s.dir, testOptions(t))
				told := func(list []SetAside) bool {
					return slices.ContainsFunc(list,
						func(a SetAside) bool { return a.File == filepath.Join(chunks.PacksFolder, pack.Name(n)) })
				}
				if list, err := s.SetAside(); err != nil || !told(list) {
					t.Errorf("set aside: %v, %v", list, err)
				}
				for name, files := range all {
					if name != hurt {
						mustHold(t, s, name, files)
					}
				}
				if _, err := read(s, hurt, "pages-1.img"); fault.ClassOf(err) != fault.Corrupt ||
					!strings.Contains(err.Error(), pack.Name(n)) {
					t.Errorf("what is lost was read: %v", err)
				}
				if _, err := s.Usage(t.Context()); err != nil {
					t.Errorf("du: %v", err)
				}
				v, err := s.Verify(t.Context(), VerifyOptions{})
				if err != nil ||
					!slices.ContainsFunc(v.Problems, func(p Problem) bool { return p.Checkpoint == hurt }) {
					t.Errorf("verify: %v, %+v", err, v)
				}
				res, err := s.GC(t.Context(), GCOptions{})
				if err != nil || !slices.Contains(res.Kept, pack.Name(n)) {
					t.Errorf("gc: %v, %+v", err, res)
				}
				if res.Reclaimed == 0 {
					t.Errorf("gc gave nothing back of the other packs: %+v", res)
				}
				write(t, s, "again", all[hurt]) // heals
				mustHold(t, s, hurt, all[hurt])
				for name, files := range all {
					mustHold(t, s, name, files)
				}
				mustHold(t, reopen(t, s), "again", all[hurt])
			})
		}
	}
}
