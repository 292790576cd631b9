package index

import (
	"path/filepath"
	"testing"
)

// What is removed leaves a hole of 128 MiB, as long as what is allocated ahead at most: what lies behind it stays.
func TestGCOfALongHole(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	must(t, Init(dir, InitOptions{PackSize: 1 << 30}))
	s := openTestStore(t, dir, testOptions(t))
	write(t, s, "a", map[string][]byte{"f": noise(1, 4<<20)})
	write(t, s, "hole", map[string][]byte{"f": noise(2, 128<<20)})
	files := map[string][]byte{"f": noise(3, 4<<20)}
	write(t, s, "c", files)
	must(t, s.Remove(t.Context(), []string{"hole"}))
	res, err := s.GC(t.Context(), GCOptions{})
	must(t, err)
	if res.Reclaimed < 128<<20 {
		t.Fatalf("gc gave %d bytes back", res.Reclaimed)
	}
	mustHold(t, s, "c", files)
}
