package index

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index/aside"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// packFiles gives the content of everything in the folder of the packs.
func packFiles(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, chunks.PacksFolder))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, e := range entries {
		if out[e.Name()], err = os.ReadFile(filepath.Join(dir, chunks.PacksFolder, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func putBack(t testing.TB, dir, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, chunks.PacksFolder, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// threeCheckpoints makes a closed store of three packs with a checkpoint each. The first two hold payload of one that
// has been removed and not collected.
func threeCheckpoints(t testing.TB) (*Store, map[string]map[string][]byte) {
	s := newTestStore(t, testOptions(t))
	all := map[string]map[string][]byte{}
	for i, name := range []string{"a", "b", "c"} {
		if i < 2 {
			write(t, s, "gone", map[string][]byte{"pages-1.img": memory(uint64(10+i), 2<<20)})
			if err := s.Remove(t.Context(), []string{"gone"}); err != nil {
				t.Fatal(err)
			}
		}
		all[name] = map[string][]byte{"pages-1.img": memory(uint64(i), 3<<20), "inventory.img": []byte(name)}
		write(t, s, name, all[name])
		if i < 2 {
			if err := s.chunks.Packs.Roll(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return s, all
}

// lastFrame gives where the last frame of a journal begins.
func lastFrame(t testing.TB, b []byte) int {
	t.Helper()
	i := bytes.LastIndex(b, []byte("GPJF"))
	if i <= 0 {
		t.Fatal("the journal has one frame only")
	}
	return i
}

// TestDamagedJournal damages one journal, lets every command go over the store, and mends it in several ways: whatever
// was done meanwhile, nothing is lost.
func TestDamagedJournal(t *testing.T) {
	damages := map[string]func(t testing.TB, path string, b []byte){
		"byte of the last frame": func(t testing.TB, path string,
			b []byte) {
			flip(t, path, int64(lastFrame(t, b)+20))
		},
		"last byte": func(t testing.TB, path string, b []byte) { flip(t, path, int64(len(b)-1)) },
		"length of the last frame": func(t testing.TB, path string,
			b []byte) {
			flip(t, path, int64(lastFrame(t, b)+5))
		},
		"byte of the first frame": func(t testing.TB, path string, _ []byte) { flip(t, path, 20) },
		"cut in the last frame": func(t testing.TB, path string, b []byte) {
			if err := os.Truncate(path, int64(len(b)-1)); err != nil {
				t.Fatal(err)
			}
		},
		"cut between frames": func(t testing.TB, path string, b []byte) {
			if err := os.Truncate(path, int64(lastFrame(t, b))); err != nil {
				t.Fatal(err)
			}
		},
		"empty": func(t testing.TB, path string, b []byte) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		},
		"missing": func(t testing.TB, path string, b []byte) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	}
	mends := map[string]func(t testing.TB, s *Store, name string, whole []byte){
		"put back": func(t testing.TB, s *Store, name string, whole []byte) { putBack(t, s.dir, name, whole) },
		"repaired": func(t testing.TB, s *Store, _ string, _ []byte) { mustRepair(t, s) },
		"repaired, then put back, then repaired": func(t testing.TB, s *Store, name string, whole []byte) {
			mustRepair(t, s)
			putBack(t, s.dir, name, whole)
			mustRepair(t, s)
		},
	}
	for damage, harm := range damages {
		for mend, heal := range mends {
			for _, which := range []string{"oldest", "newest"} {
				if which == "oldest" && damage != "missing" && damage != "last byte" {
					continue
				}
				t.Run(strings.Join([]string{damage, which, mend}, "/"), func(t *testing.T) {
					t.Parallel()
					s, all := threeCheckpoints(t)
					before := packFiles(t, s.dir)
					names := slices.Sorted(maps.Keys(before)) // a journal comes before its pack
					name := names[0]
					if which == "newest" {
						name = names[len(names)-2]
					}
					harm(t, filepath.Join(s.dir, chunks.PacksFolder, name), before[name])
					damaged := packFiles(t, s.dir)
					s = goOver(t, s, all, damaged, strings.TrimSuffix(name, ".journal"))
					heal(t, s, name, before[name])
					s = openTestStore(t, s.dir, s.o)
					for name, files := range all {
						mustHold(t, s, name, files)
					}
					mustVerify(t, s, 0)
					if list, err := s.chunks.Aside.All(); err != nil || len(list) > 0 {
						t.Errorf("set aside: %+v, %v", list, err)
					}
					if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil || len(res.Kept) > 0 {
						t.Errorf("gc: %+v, %v", res, err)
					}
					mustVerify(t, s, 0)
				})
			}
		}
	}
}

func mustRepair(t testing.TB, s *Store) {
	t.Helper()
	if res, err := Repair(t.Context(), s.dir, s.o); err != nil || len(res.Lost) > 0 || len(res.SetAside) > 0 {
		t.Errorf("repair: %+v, %v", res, err)
	}
}

// goOver opens a damaged store twice, reads, verifies, collects and writes: pack n and its journal must stay as they
// are.
func goOver(t testing.TB, s *Store, all map[string]map[string][]byte, damaged map[string][]byte, n string) *Store {
	t.Helper()
	same := func(after string) {
		t.Helper()
		now := packFiles(t, s.dir)
		for name, b := range damaged {
			if strings.HasPrefix(name, n) && !bytes.Equal(b, now[name]) {
				t.Errorf("%s changed %s: %d bytes were %d", after, name, len(now[name]), len(b))
			}
		}
	}
	s = openTestStore(t, s.dir, s.o)
	same("opening")
	if _, err := s.List(t.Context()); err != nil {
		t.Error(err)
	}
	for name, files := range all {
		mustHold(t, s, name, files)
	}
	v, err := s.Verify(t.Context(), upkeep.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.chunks.Aside.All()
	if err != nil {
		t.Fatal(err)
	}
	told := slices.ContainsFunc(v.Problems, func(p upkeep.Problem) bool { return strings.HasPrefix(p.Pack, n) })
	if !told ||
		!slices.ContainsFunc(list, func(a aside.Entry) bool { return strings.HasPrefix(filepath.Base(a.File), n) }) {
		t.Errorf("verify says %+v, set aside are %+v", v, list)
	}
	same("verify")
	if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil || res.Reclaimed == 0 {
		t.Errorf("gc: %+v, %v", res, err)
	}
	same("gc")
	all["later"] = map[string][]byte{"pages-1.img": memory(50, 4<<20)}
	write(t, s, "later", all["later"])
	same("a new checkpoint")
	s = reopen(t, s)
	for name, files := range all {
		mustHold(t, s, name, files)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	same("opening again")
	return s
}

// TestJournalAndIndexLost takes the index away as well: what only the damaged journal told is unknown then, but kept,
// and comes back with the journal.
func TestJournalAndIndexLost(t *testing.T) {
	t.Parallel()
	for _, missing := range []bool{false, true} {
		t.Run(fmt.Sprint("missing ", missing), func(t *testing.T) {
			s, all := threeCheckpoints(t)
			before := packFiles(t, s.dir)
			names := slices.Sorted(maps.Keys(before))
			name := names[len(names)-2]
			path := filepath.Join(s.dir, chunks.PacksFolder, name)
			if missing {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else {
				flip(t, path, int64(lastFrame(t, before[name])+20))
			}
			if err := os.RemoveAll(filepath.Join(s.dir, chunks.IndexFolder)); err != nil {
				t.Fatal(err)
			}
			res, err := Repair(t.Context(), s.dir, s.o)
			if err != nil || len(res.SetAside) != 1 {
				t.Fatalf("repair: %+v, %v", res, err)
			}
			s = openTestStore(t, s.dir, s.o)
			if _, err := s.Checkpoint("c"); fault.ClassOf(err) != fault.NotFound {
				t.Errorf("its record came from nowhere: %v", err)
			}
			if v := mustVerify(t, s, 0); len(v.SetAside) != 1 {
				t.Errorf("verify does not tell what is set aside: %+v", v)
			}
			all["later"] = map[string][]byte{"pages-1.img": memory(50, 4<<20)}
			write(t, s, "later", all["later"])
			if err := s.Remove(t.Context(), []string{"later"}); err != nil {
				t.Fatal(err)
			}
			delete(all, "later")
			if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil || res.Reclaimed < 1<<20 ||
				len(res.Kept) < 2 {
				t.Errorf("gc: %+v, %v", res, err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if missing {
				putBack(t, s.dir, name, before[name])
			} else {
				flip(t, filepath.Join(s.dir, res.SetAside[0].File), int64(lastFrame(t, before[name])+20))
			}
			mustRepair(t, s)
			s = openTestStore(t, s.dir, s.o)
			for name, files := range all {
				mustHold(t, s, name, files)
			}
			mustVerify(t, s, 0)
		})
	}
}

// TestTornCommit gives a journal the beginning of a frame behind its mark, as a crash does: it is nothing to report, it
// is not cut off, and gc gives the pack's dead space back.
func TestTornCommit(t *testing.T) {
	s, all := threeCheckpoints(t)
	packs, err := s.chunks.Packs.Packs()
	if err != nil {
		t.Fatal(err)
	}
	n := packs[len(packs)-1]
	files := packFiles(t, s.dir)
	torn := append(bytes.Clone(files[pack.JournalName(n)]), "GPJF\x00\x01\x00\x00abcdefg"...)
	putBack(t, s.dir, pack.JournalName(n), torn)
	putBack(t, s.dir, pack.Name(n), append(bytes.Clone(files[pack.Name(n)]), memory(9, 1<<20)...))
	s = openTestStore(t, s.dir, s.o)
	mustVerify(t, s, 0)
	if list, err := s.chunks.Aside.All(); err != nil || len(list) > 0 {
		t.Errorf("set aside: %+v, %v", list, err)
	}
	s = reopen(t, s)
	if got := packFiles(t, s.dir); !bytes.Equal(got[pack.JournalName(n)], torn) {
		t.Error("it was cut off by opening")
	}
	all["later"] = map[string][]byte{"pages-1.img": memory(50, 4<<20)}
	write(t, s, "later", all["later"])
	if err := s.Remove(t.Context(), []string{"c"}); err != nil {
		t.Fatal(err)
	}
	delete(all, "c")
	if res, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil || len(res.Kept) > 0 || res.Reclaimed == 0 {
		t.Errorf("gc: %+v, %v", res, err)
	}
	if again, err := s.GC(t.Context(), upkeep.GCOptions{DryRun: true}); err != nil || again.Reclaimable > 0 {
		t.Errorf("left to reclaim: %+v, %v", again, err)
	}
	s = reopen(t, s)
	for name, files := range all {
		mustHold(t, s, name, files)
	}
	mustVerify(t, s, 0)
}

// TestRepairAfterHalfAnExchange lets a crash end a repair between the two renames that put the new index in place. The
// next repair goes on with that index: it may be all that tells of a pack whose journal is gone.
func TestRepairAfterHalfAnExchange(t *testing.T) {
	s, files, journal := onePack(t)
	old := filepath.Join(s.dir, chunks.IndexFolder)
	for _, err := range []error{s.Close(), os.CopyFS(old+".new", os.DirFS(old)), os.Rename(old, old+".old"),
		os.Remove(journal)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if res, err := Repair(t.Context(), s.dir, s.o); err != nil || len(res.Lost) > 0 {
		t.Fatalf("repair: %+v, %v", res, err)
	}
	s = openTestStore(t, s.dir, s.o)
	mustHold(t, s, "a", files)
	mustVerify(t, s, 0)
}

// The journal of a pack is damaged, and the index alone knows what lies there: a dump of the same content does not rely
// on it, and is whole when the index is lost.
func TestDumpBesideAPackSetAside(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"f": memory(1, 1<<20)}
	write(t, s, "a", files)
	must(t, s.Close())
	flip(t, filepath.Join(s.dir, chunks.PacksFolder, pack.JournalName(1)), 100)
	s = openTestStore(t, s.dir, s.o)
	_, err := s.Verify(t.Context(), VerifyOptions{})
	must(t, err)
	if !s.chunks.Aside.Has(1) {
		t.Fatal("the pack is not set aside: the test shows nothing")
	}
	write(t, s, "again", files)
	must(t, s.Close())
	must(t, os.RemoveAll(filepath.Join(s.dir, chunks.IndexFolder)))
	_, err = Repair(t.Context(), s.dir, Options{FreeFloor: 1})
	must(t, err)
	s = openTestStore(t, s.dir, s.o)
	mustHold(t, s, "again", files)
}
