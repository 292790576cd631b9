package fs

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// TestPosix runs go-fuse's conformance tests in a draft and in scratch. What they leave out is what no caller of CRIU
// uses: extended attributes (answered with ENOSYS, to be asked only once), O_TMPFILE, locks between mounts (they are
// the kernel's own), and hard links in checkpoints.
func TestPosix(t *testing.T) {
	const neither, scratchOnly, both = 0, 1, 2
	in := map[string]int{
		"XAttr": neither, "XAttrLarge": neither, "Tmpfile": neither, "FcntlFlockLocksFile": neither,
		"Link": scratchOnly, "LinkUnlinkRename": scratchOnly,
	}
	s := newStore(t)
	srv := mounted(t, s, Options{})
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		left, ok := in[name]
		if !ok {
			left = both
		}
		if left != neither {
			t.Run("scratch/"+name, func(t *testing.T) {
				dir := filepath.Join(srv.Dir(), name)
				must(t, os.Mkdir(dir, 0o755))
				posixtest.All[name](t, dir)
			})
		}
		if left == both {
			t.Run("draft/"+name, func(t *testing.T) {
				dir := filepath.Join(srv.Dir(), topName, name)
				must(t, os.Mkdir(dir, 0o755))
				posixtest.All[name](t, dir)
				_, err := srv.Seal(t.Context(), name)
				must(t, err)
			})
		}
	}
}
