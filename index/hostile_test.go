package index

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/pageset"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/upkeep"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

// A store may come from anybody, and is opened as root. These tests write into one what this program would not.

// plant commits records as they are.
func plant(t *testing.T, s *Store, records map[string]proto.Message) {
	t.Helper()
	var puts []chunks.Put
	for key, m := range records {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		puts = append(puts, chunks.Put{Key: key, Payload: b})
	}
	if err := s.chunks.Commit(puts); err != nil {
		t.Fatal(err)
	}
}

// TestIDsAreNoPaths: what names a file of the store is an id, and nothing else is taken for one.
func TestIDsAreNoPaths(t *testing.T) {
	root := func(id, name string) *manifestpb.Checkpoint {
		return &manifestpb.Checkpoint{Version: manifest.Version, Id: id, Name: name, Sealed: true}
	}
	const other = "00000000000000aa"
	for name, tc := range map[string]struct {
		records map[string]proto.Message
		damaged bool
	}{
		"root": {map[string]proto.Message{
			manifest.RootKey("../../victim"): root("../../victim", "evil")}, true},
		"root, other key":  {map[string]proto.Message{manifest.RootKey(other): root("../../victim", "evil")}, true},
		"root, another id": {map[string]proto.Message{manifest.RootKey(other): root("00000000000000bb", "evil")}, true},
		"body without a root": {map[string]proto.Message{
			"files/../../victim/000000": &manifestpb.Entries{}, "seg/../../victim": &manifestpb.Segment{},
			"prof/../../victim": &manifestpb.Segment{}}, false},
		"empty id": {map[string]proto.Message{"seg/": &manifestpb.Segment{}, "files//000000": &manifestpb.Entries{}},
			false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, testOptions(t))
			// The names of an id are looked up in folders of the store: "../../victim" is beside it.
			victims := []string{filepath.Join(s.dir, "..", "victim"), filepath.Join(s.dir, "victim")}
			for _, v := range victims {
				if err := os.WriteFile(v, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			files := map[string][]byte{"f": memory(1, 1<<20)}
			write(t, s, "good", files)
			if err := os.Mkdir(filepath.Join(s.dir, roots.HotFolder), 0o700); err != nil {
				t.Fatal(err)
			}
			plant(t, s, tc.records)
			s = reopen(t, s)
			if len(s.roots.DamagedIDs()) > 0 != tc.damaged {
				t.Errorf("damaged roots: %v", s.roots.DamagedIDs())
			}
			if err := s.Remove(t.Context(), []string{"evil"}); fault.ClassOf(err) != fault.NotFound {
				t.Errorf("rm: %v", err)
			}
			if err := s.SetProfile("evil", nil); fault.ClassOf(err) != fault.NotFound {
				t.Errorf("profile: %v", err)
			}
			if _, err := s.GC(t.Context(), upkeep.GCOptions{}); (fault.ClassOf(err) == fault.Corrupt) != tc.damaged ||
				err != nil && !tc.damaged {
				t.Errorf("gc: %v", err)
			}
			for _, v := range victims {
				if _, err := os.Stat(v); err != nil {
					t.Error(err)
				}
			}
			mustHold(t, s, "good", files)
		})
	}
}

// TestLinksInAStore: no file of a store leads elsewhere.
func TestLinksInAStore(t *testing.T) {
	for _, name := range []string{lockName, configName, chunks.IndexFolder, chunks.PacksFolder, roots.HotFolder,
		"packs/00000001.pack", "packs/00000001.journal", "index/MANIFEST", "hot/x"} {
		t.Run(name, func(t *testing.T) {
			s := newTestStore(t, testOptions(t))
			write(t, s, "a", map[string][]byte{"f": memory(1, 1<<20)})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			at, outside := filepath.Join(s.dir, name), filepath.Join(t.TempDir(), "outside")
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o700), os.Rename(at, outside)); err != nil {
				// It is not there: then the link leads to what must not be touched.
				if err := errors.Join(os.Mkdir(outside, 0o700),
					os.WriteFile(filepath.Join(outside, "victim"), []byte("x"), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			before := listing(t, outside)
			if err := os.Symlink(outside, at); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(t.Context(), s.dir, s.o); fault.ClassOf(err) != fault.Corrupt ||
				!strings.Contains(err.Error(), "symbolic link") {
				t.Errorf("open: %v", err)
			}
			if _, err := Repair(t.Context(), s.dir, s.o); fault.ClassOf(err) != fault.Corrupt {
				t.Errorf("repair: %v", err)
			}
			if after := listing(t, outside); after != before {
				t.Errorf("outside was\n%s\nand is\n%s", before, after)
			}
		})
	}
}

// listing tells all that lies at p, with contents.
func listing(t *testing.T, p string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(p, func(p string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var content []byte
		if e.Type().IsRegular() {
			content, err = os.ReadFile(p)
		}
		fmt.Fprintln(&b, p, chunk.Sum(content))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestHotFolderOfOthers: what is no hot set of ours stays.
func TestHotFolderOfOthers(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	hot := filepath.Join(s.dir, roots.HotFolder)
	if err := os.Mkdir(hot, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, stays := range map[string]bool{
		"notes": true, "00000000000000aa": false, "00000000000000aa-77.new": false, "x-1.new": true,
		"00000000000000aa-77": true, "00000000000000AA": true,
	} {
		p := filepath.Join(hot, name)
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, s)
		if _, err := os.Stat(p); (err == nil) != stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneChunkOfTwoLengths: a manifest that gives one chunk two lengths is damaged, in whatever order and way it is
// read.
func TestOneChunkOfTwoLengths(t *testing.T) {
	for _, size := range []int{3000, 8192} {
		for _, longFirst := range []bool{false, true} {
			s := newTestStore(t, testOptions(t))
			content := bytes.Repeat([]byte("x"), size)
			write(t, s, "a", map[string][]byte{"f": append(content, make([]byte, 8192)...)})
			id, e := entryOf(t, s, "a")
			_, payload, err := s.chunks.DB.Meta(manifest.SegmentKey(id, e.Number, 0))
			if err != nil {
				t.Fatal(err)
			}
			seg, err := manifest.DecodeSegment(payload)
			if err != nil {
				t.Fatal(err)
			}
			ref := seg.Chunks[0]
			refs := []manifest.ChunkRef{ref, {ID: ref.ID, Len: ref.Len + 8192, Stored: ref.Stored}}
			runs := []manifest.Run{{Len: int64(ref.Len)}, {Start: int64(ref.Len), Len: int64(ref.Len) + 8192, Chunk: 1}}
			if longFirst {
				runs = []manifest.Run{{Len: int64(ref.Len) + 8192, Chunk: 1},
					{Start: int64(ref.Len) + 8192, Len: int64(ref.Len)}}
			}
			bad := &manifest.Segment{Len: 2*int64(ref.Len) + 8192, Chunks: refs, Runs: runs}
			payload, err = manifest.EncodeSegment(bad)
			if err != nil {
				t.Fatal(err)
			}
			entry := proto.CloneOf(e)
			entry.Size, entry.Zero = bad.Len, 0
			table, err := manifest.EncodeEntries([]*manifestpb.Entry{entry})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.chunks.Commit([]chunks.Put{{Key: manifest.SegmentKey(id, e.Number, 0), Payload: payload},
				{Key: manifest.TableKey(id, 0), Payload: table}}); err != nil {
				t.Fatal(err)
			}
			s = reopen(t, s)
			for how, read := range map[string]func(f *reading.File, p []byte, off int64) (int, error){
				"ReadAt": (*reading.File).ReadAt, "ReadInto": (*reading.File).ReadInto,
			} {
				for _, part := range []int64{bad.Len, 4096, 1} {
					f := openFile(t, s, "a", "f")
					failed := 0
					for off := int64(0); off < bad.Len; off += part {
						if _, err := read(f, make([]byte, min(part, bad.Len-off)),
							off); fault.ClassOf(err) == fault.Corrupt {
							failed++
						}
						if part == 1 && off > 20 && off < bad.Len-20 {
							off += 997
						}
					}
					if failed == 0 {
						t.Errorf("%s by %d: nothing is said", how, part)
					}
				}
			}
			if _, err := s.Verify(t.Context(), upkeep.VerifyOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestBitset holds the set to a map, and to the memory that a single far bit may take.
func TestBitset(t *testing.T) {
	var a, b pageset.Pages
	model := map[uint32]bool{}
	r := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		i := r.Uint32() >> r.IntN(32)
		model[i] = true
		a.Set(i)
		b.Set(i)
	}
	for i := range model {
		for _, n := range []uint32{i, i + 1, i - 1, i ^ 1024} {
			if a.Has(n) != model[n] {
				t.Fatalf("bit %d", n)
			}
		}
	}
	if at, found := a.Missing(&b); found {
		t.Errorf("%d is missing of an equal set", at)
	}
	for _, i := range []uint32{1<<32 - 1, 1 << 20, 70_000_000} {
		if model[i] {
			continue
		}
		a.Set(i)
		if at, found := a.Missing(&b); !found || at != i&^63 {
			t.Errorf("%d: missing %d, %v", i, at, found)
		}
		if _, found := b.Missing(&a); found {
			t.Error("the smaller set lacks nothing")
		}
		b.Set(i)
	}
	if (*pageset.Pages)(nil).Has(0) {
		t.Error("an empty set has something")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var far pageset.Pages
	far.Set(1<<32 - 1)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 {
		t.Errorf("one bit takes %d bytes", n)
	}
}

// TestHugeConfig: a configuration is a few hundred bytes, and its packs have a bound.
func TestHugeConfig(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := Init(dir, InitOptions{}); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, configName)
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	huge := bytes.Replace(good, []byte("{"), append([]byte("{"), bytes.Repeat([]byte(" "), 1<<20)...), 1)
	packs := bytes.Replace(good, []byte(`"pack_size": 1073741824`), []byte(`"pack_size": 1099511627777`), 1)
	for what, b := range map[string][]byte{"huge": huge, "pack size": packs, "nothing": nil} {
		if bytes.Equal(b, good) {
			t.Fatal(what)
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadConfig(dir); fault.ClassOf(err) != fault.Corrupt {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.Truncate(name, 1<<40); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig(dir); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("a terabyte of zeros: %v", err)
	}
}

func FuzzConfig(f *testing.F) {
	dir := f.TempDir()
	if err := Init(filepath.Join(dir, "store"), InitOptions{}); err != nil {
		f.Fatal(err)
	}
	name := filepath.Join(dir, "store", configName)
	good, err := os.ReadFile(name)
	if err != nil {
		f.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "store", copyName)); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := LoadConfig(filepath.Dir(name))
		if err != nil {
			if class := fault.ClassOf(err); class != fault.Corrupt && class != fault.Unsupported {
				t.Fatal(err)
			}
			return
		}
		if c.Chunk.Validate() != nil || c.PackSize <= 0 || c.PackSize > pack.MaxSize ||
			c.identity() == [16]byte{} && c.ID != strings.Repeat("0", 32) {
			t.Fatalf("accepted %+v", c)
		}
	})
}

// entryOf gives the id of a checkpoint of one file, and what is recorded of that.
func entryOf(t *testing.T, s *Store, name string) (id string, e *manifestpb.Entry) {
	t.Helper()
	id = idOf(t, s, name)
	_, payload, err := s.chunks.DB.Meta(manifest.TableKey(id, 0))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := manifest.DecodeEntries(payload)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	return id, entries[0]
}
