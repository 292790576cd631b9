package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index/distant"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/nodecache"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upload"
)

// shelf is a bucket that several stores use.
type shelf struct {
	id [16]byte

	mu    sync.Mutex
	packs map[object.Name][]byte
	gets  int
	added byte
	cut   error // what every request fails with
}

func newShelf() *shelf { return &shelf{id: [16]byte{0xb0, 1}, packs: map[object.Name][]byte{}} }

// listed gives a list of which nothing else is known.
func listed(list []byte) object.Source { return object.Source{Reader: bytes.NewReader(list)} }

func (b *shelf) AddPack(_ context.Context, p []byte) (object.Name, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.added++
	name := object.Name{19: b.added}
	b.packs[name] = bytes.Clone(p)
	return name, nil
}

func (b *shelf) ReadRange(_ context.Context, name object.Name, p []byte, off int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gets++
	if b.cut != nil {
		return b.cut
	}
	if b.packs[name] == nil {
		return &fault.Error{Class: fault.NotFound, Op: "get", File: name.String()}
	}
	if off+int64(len(p)) > int64(len(b.packs[name])) {
		return fmt.Errorf("no %d bytes at %d of %s", len(p), off, name)
	}
	copy(p, b.packs[name][off:])
	return nil
}

// node is a store with a bucket.
type node struct {
	*Store
	dir   string
	cache *nodecache.Cache
}

// newNode makes a store with the bucket, or opens the one in dir.
func newNode(t *testing.T, b *shelf, dir string) *node {
	t.Helper()
	if dir == "" {
		dir = filepath.Join(t.TempDir(), "store")
		must(t, Init(dir, InitOptions{}))
	}
	n := &node{dir: dir}
	n.open(t, b)
	t.Cleanup(func() { n.Close() })
	return n
}

func (n *node) open(t *testing.T, b *shelf) {
	t.Helper()
	var err error
	n.cache, err = nodecache.Open(nodecache.Options{Dir: filepath.Join(n.dir, "cache"), Limit: 1 << 30,
		Storage: storage.Disk{}, Source: b, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	n.Store, err = Open(t.Context(), n.dir, Options{Distant: n.cache, FreeFloor: 1})
	must(t, err)
}

// upload takes a checkpoint to the bucket, and gives its list.
func (n *node) upload(t *testing.T, b *shelf, name string) *upload.Result {
	t.Helper()
	u := n.Uploader(b.id)
	res, err := u.Upload(t.Context(), name, b, nil)
	must(t, err)
	must(t, u.Durable(res))
	return res
}

// fill writes a checkpoint of several files: large, small, sparse, compressible, empty, in folders.
func (n *node) fill(t *testing.T, name string, seed uint64, size int) map[string][]byte {
	t.Helper()
	rnd := rand.NewChaCha8([32]byte{byte(seed)})
	files := map[string][]byte{"pages-1.img": make([]byte, size), "core-1.img": []byte("core"), "empty": {},
		"text": bytes.Repeat([]byte("all work and no play "), 30_000), "sparse": make([]byte, 3<<20)}
	rnd.Read(files["pages-1.img"])
	rnd.Read(files["sparse"][1<<20 : 1<<20+5000])
	d, err := n.Create(t.Context(), name, CreateOptions{Labels: map[string]string{"of": name}})
	must(t, err)
	must(t, d.Mkdir("folder", 0o755))
	files["folder/inside"] = []byte("in a folder")
	fill(t, d, files)
	_, err = d.Seal(t.Context())
	must(t, err)
	return files
}

// holds compares a checkpoint with what was written.
func (n *node) holds(name string, files map[string][]byte) error {
	c, err := n.Checkpoint(name)
	if err != nil {
		return err
	}
	for p, want := range files {
		got, err := fs.ReadFile(c.FS(), p)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s has other bytes", p)
		}
	}
	return nil
}

// TestPulled takes a checkpoint through the bucket to a node that has never seen it, which reads it on demand; it stays
// when that node's store is opened again, its index is lost, its cache is deleted.
func TestPulled(t *testing.T) {
	b := newShelf()
	one := newNode(t, b, "")
	files := one.fill(t, "web", 1, 9<<20)
	res := one.upload(t, b, "web")
	if len(res.New) == 0 || len(res.Known) != 0 {
		t.Errorf("%d new packs, %d known", len(res.New), len(res.Known))
	}

	two := newNode(t, b, "")
	info, err := two.Pull(t.Context(), "web-2", b.id, listed(res.List))
	must(t, err)
	if b.gets != 0 {
		t.Errorf("%d requests before anything was read", b.gets)
	}
	from, err := one.Checkpoint("web")
	must(t, err)
	if info.ID != from.Info().ID || info.Logical != from.Info().Logical || info.Labels["of"] != "web" ||
		info.Name != "web-2" {
		t.Errorf("pulled as %+v", info)
	}
	must(t, two.holds("web-2", files))
	gets := b.gets
	must(t, two.holds("web-2", files))
	must(t, two.Close())
	two.open(t, b)
	must(t, two.holds("web-2", files))
	if b.gets != gets {
		t.Errorf("%d requests for what was there", b.gets-gets)
	}
	got, err := two.Verify(t.Context(), VerifyOptions{Subset: 1})
	if err != nil || len(got.Problems) > 0 || got.Distant == 0 {
		t.Errorf("verify: %+v, %v", got, err)
	}
	_, err = two.GC(t.Context(), GCOptions{})
	must(t, err)

	must(t, two.Close())
	must(t, os.RemoveAll(filepath.Join(two.dir, "index")))
	must(t, os.RemoveAll(filepath.Join(two.dir, "cache")))
	_, err = Repair(t.Context(), two.dir, Options{FreeFloor: 1})
	must(t, err)
	two.open(t, b)
	must(t, two.holds("web-2", files))

	if _, err := two.Pull(t.Context(), "again", b.id, listed(res.List)); fault.ClassOf(err) != fault.Exists {
		t.Errorf("pulled twice: %v", err)
	}
	must(t, two.Remove(t.Context(), []string{"web-2"}))
	_, err = two.GC(t.Context(), GCOptions{})
	must(t, err)
	_, err = two.Pull(t.Context(), "again", b.id, listed(res.List))
	must(t, err)
	must(t, two.holds("again", files))
}

// TestWhatWasLearntComesAlong takes profile and hot set of a checkpoint through the bucket with it; the hot set lies in
// a pack of its own. A new profile takes the place of both.
func TestWhatWasLearntComesAlong(t *testing.T) {
	b := newShelf()
	one, two := newNode(t, b, ""), newNode(t, b, "")
	files := one.fill(t, "web", 1, 3<<20)
	hot := make([]byte, HotPiece*2+12345)
	rand.NewChaCha8([32]byte{7}).Read(hot)
	must(t, one.SetProfile("web", []byte("the profile")))
	must(t, one.SetHotSet("web", int64(len(hot)), func(w io.Writer) error { _, err := w.Write(hot); return err }))
	res := one.upload(t, b, "web")
	if n := len(res.New); n != 2 || res.New[1].Size < int64(len(hot)) || res.New[1].Size > int64(len(hot))+1<<16 {
		t.Errorf("packs %+v for contents and a hot set of %d bytes", res.New, len(hot))
	}
	for range 2 {
		_, err := two.Pull(t.Context(), "web", b.id, listed(res.List))
		must(t, err)
		if p, err := two.Profile("web"); err != nil || string(p) != "the profile" {
			t.Errorf("the profile that came is %q, %v", p, err)
		}
		h, err := two.HotSet("web")
		must(t, err)
		gets := b.gets
		two.Bring(t.Context(), h.Pieces(), func([]int) {})
		got := make([]byte, h.Size())
		if _, err := h.ReadAt(got, 0); err != nil || !bytes.Equal(got, hot) {
			t.Errorf("another hot set of %d bytes came, %v", len(got), err)
		}
		if _, err := h.ReadAt(got[:100], h.Size()-50); !errors.Is(err, io.EOF) ||
			!bytes.Equal(got[:50], hot[len(hot)-50:]) {
			t.Errorf("read beyond its end: %v", err)
		}
		if b.gets > gets+1 {
			t.Errorf("%d requests for the hot set", b.gets-gets)
		}
		must(t, two.holds("web", files))
		must(t, two.SetProfile("web", []byte("another")))
		if _, err := two.HotSet("web"); fault.ClassOf(err) != fault.NotFound {
			t.Errorf("the hot set outlives its profile: %v", err)
		}
		must(t, two.Remove(t.Context(), []string{"web"}))
		_, err = two.GC(t.Context(), GCOptions{})
		must(t, err)
		must(t, two.Close())
		must(t, os.RemoveAll(filepath.Join(two.dir, "index")))
		_, err = Repair(t.Context(), two.dir, Options{FreeFloor: 1})
		must(t, err)
		two.open(t, b)
	}
}

// TestWhatIsStoredHereReliesOnNothingElse writes, on a node that knows all its content from the bucket, a checkpoint of
// its own: it is there without the bucket.
func TestWhatIsStoredHereReliesOnNothingElse(t *testing.T) {
	b := newShelf()
	one := newNode(t, b, "")
	files := one.fill(t, "web", 1, 5<<20)
	res := one.upload(t, b, "web")
	two := newNode(t, b, "")
	_, err := two.Pull(t.Context(), "theirs", b.id, listed(res.List))
	must(t, err)
	two.fill(t, "mine", 1, 5<<20)
	b.cut = errors.New("no way there")
	must(t, two.holds("mine", files))
	must(t, two.holds("theirs", files)) // the same chunks
	must(t, two.Close())
	must(t, os.RemoveAll(filepath.Join(two.dir, "cache")))
	must(t, os.RemoveAll(filepath.Join(two.dir, "index")))
	_, err = Repair(t.Context(), two.dir, Options{FreeFloor: 1})
	must(t, err)
	two.open(t, b)
	must(t, two.holds("mine", files))
	// And without theirs, gc keeps what is mine.
	must(t, two.Remove(t.Context(), []string{"theirs"}))
	_, err = two.GC(t.Context(), GCOptions{})
	must(t, err)
	must(t, two.holds("mine", files))
}

// TestForgotten collects after a pulled checkpoint was removed: what the store knows of its packs goes once nothing in
// the bucket needs them, and a checkpoint that is still here can be read, also by an index that is built anew.
func TestForgotten(t *testing.T) {
	b := newShelf()
	one := newNode(t, b, "")
	one.fill(t, "a", 1, 3<<20)
	a := one.upload(t, b, "a")
	files := one.fill(t, "b", 2, 2<<20)
	other := one.upload(t, b, "b")
	two := newNode(t, b, "")
	for name, list := range map[string][]byte{"a": a.List, "b": other.List} {
		_, err := two.Pull(t.Context(), name, b.id, listed(list))
		must(t, err)
	}
	collect := func(want int, stands func(object.Name) bool) {
		t.Helper()
		res, err := two.GC(t.Context(), GCOptions{Stands: stands})
		if err != nil || res.Forgotten != want {
			t.Errorf("%d packs are forgotten, not %d, %v", res.Forgotten, want, err)
		}
	}
	none := func(object.Name) bool { return false }
	collect(0, none) // both are here
	must(t, two.Remove(t.Context(), []string{"a"}))
	collect(0, func(object.Name) bool { return true })
	collect(0, nil)
	collect(len(a.New)-len(other.Known), none)
	must(t, two.holds("b", files))
	must(t, two.Close())
	must(t, os.RemoveAll(filepath.Join(two.dir, "index")))
	_, err := Repair(t.Context(), two.dir, Options{FreeFloor: 1})
	must(t, err)
	two.open(t, b)
	must(t, two.holds("b", files))
	_, err = two.Pull(t.Context(), "a", b.id, listed(a.List))
	must(t, err)
}

// TestUploadedOnce uploads a second checkpoint that has most of the first: only what differs goes. Chunks of packs that
// do not stand any more go again.
func TestUploadedOnce(t *testing.T) {
	b := newShelf()
	one := newNode(t, b, "")
	one.fill(t, "a", 1, 8<<20)
	first := one.upload(t, b, "a")
	files := one.fill(t, "b", 1, 9<<20)
	second := one.upload(t, b, "b")
	if second.Bytes > 3<<20 || len(second.Known) != len(first.New) {
		t.Errorf("%d bytes more for 1 MiB more, %d packs known", second.Bytes, len(second.Known))
	}
	two := newNode(t, b, "")
	_, err := two.Pull(t.Context(), "b", b.id, listed(second.List))
	must(t, err)
	must(t, two.holds("b", files))

	gone := map[object.Name]bool{}
	for _, p := range first.New {
		gone[p.Name] = true
		delete(b.packs, p.Name)
	}
	third, err := one.Uploader(b.id).Upload(t.Context(), "b", b, func(n object.Name) bool { return !gone[n] })
	must(t, err)
	must(t, one.Uploader(b.id).Durable(third))
	three := newNode(t, b, "")
	_, err = three.Pull(t.Context(), "b", b.id, listed(third.List))
	must(t, err)
	must(t, three.holds("b", files))
}

// TestWhatOthersTold hears of another machine's checkpoint with the same contents as one that was pulled: when the
// packs of that are gone from the bucket it is read from the other's, also when the store was opened anew. An upload
// refers to what was heard.
func TestWhatOthersTold(t *testing.T) {
	b := newShelf()
	one, other, two := newNode(t, b, ""), newNode(t, b, ""), newNode(t, b, "")
	files := one.fill(t, "a", 1, 8<<20)
	other.fill(t, "b", 1, 8<<20)
	theirs, others := one.upload(t, b, "a"), other.upload(t, b, "b")
	_, err := two.Pull(t.Context(), "a", b.id, listed(theirs.List))
	must(t, err)
	must(t, two.Learn(t.Context(), b.id, listed(others.List)))
	two.KeepLearned()
	must(t, two.Close())
	two.open(t, b)
	b.mu.Lock()
	for _, p := range theirs.New {
		delete(b.packs, p.Name)
	}
	b.mu.Unlock()
	must(t, two.holds("a", files))

	three := newNode(t, b, "")
	must(t, three.Learn(t.Context(), b.id, listed(others.List)))
	three.KeepLearned()
	three.fill(t, "c", 1, 8<<20)
	if c := three.upload(t, b, "c"); c.Bytes > 0 || len(c.Known) == 0 {
		t.Errorf("uploaded %d bytes of what others have there, %d packs known", c.Bytes, len(c.Known))
	}
}

// TestBucketIsAway reads an pulled checkpoint while the bucket cannot be reached: an error, not damage. Afterwards it
// can be read.
func TestBucketIsAway(t *testing.T) {
	b := newShelf()
	one := newNode(t, b, "")
	files := one.fill(t, "web", 1, 2<<20)
	res := one.upload(t, b, "web")
	two := newNode(t, b, "")
	_, err := two.Pull(t.Context(), "web", b.id, listed(res.List))
	must(t, err)
	b.cut = errors.New("no way there")
	if err := two.holds("web", files); !errors.Is(err, b.cut) || fault.ClassOf(err) == fault.Corrupt {
		t.Errorf("read with the bucket away: %v", err)
	}
	b.cut = nil
	must(t, two.holds("web", files))
	must(t, two.Close())
	s, err := Open(t.Context(), two.dir, Options{FreeFloor: 1})
	must(t, err)
	if err := (&node{Store: s}).holds("web", files); !errors.Is(err, distant.ErrNoBucket) {
		t.Errorf("read without a bucket: %v", err)
	}
	must(t, s.Close())
	two.open(t, b)
}

// TestHostileList pulls lists that do not tell all, or tell of another checkpoint: nothing of them stays.
func TestHostileList(t *testing.T) {
	b := newShelf()
	one := newNode(t, b, "")
	one.fill(t, "web", 1, 2<<20)
	res := one.upload(t, b, "web")
	whole := &object.List{}
	must(t, object.Decode(listed(res.List), b.id, object.Visitor{
		Pack:  func(_ uint32, p object.PackRef) error { whole.Packs = append(whole.Packs, p); return nil },
		Chunk: func(c pack.Chunk) error { whole.Chunks = append(whole.Chunks, c); return nil },
		Record: func(kv pack.KV) error {
			kv.Value = bytes.Clone(kv.Value)
			whole.Records = append(whole.Records, kv)
			return nil
		},
	}))
	for name, change := range map[string]func(l *object.List){
		"a chunk less":     func(l *object.List) { l.Chunks = l.Chunks[1:] },
		"a record less":    func(l *object.List) { l.Records = l.Records[:len(l.Records)-1] },
		"no root":          func(l *object.List) { l.Records = l.Records[1:] },
		"nothing":          func(l *object.List) { *l = object.List{} },
		"another's record": func(l *object.List) { l.Records[1].Key = "files/0123456789abcdef/000000" },
		"an odd record":    func(l *object.List) { l.Records[1].Key = "damage/" + l.Records[1].Key },
		"a broken record":  func(l *object.List) { l.Records[1].Value = []byte("no table") },
		"a shorter pack":   func(l *object.List) { l.Packs[0].Size = 0; l.Chunks = nil },
	} {
		l := &object.List{Packs: append([]object.PackRef(nil), whole.Packs...),
			Chunks:  append([]pack.Chunk(nil), whole.Chunks...),
			Records: append([]pack.KV(nil), whole.Records...)}
		change(l)
		list, err := l.Encode(b.id)
		must(t, err)
		two := newNode(t, b, "")
		if _, err := two.Pull(t.Context(), "web", b.id, listed(list)); fault.ClassOf(err) != fault.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
		if names, err := two.Names(t.Context()); err != nil || len(names) > 0 {
			t.Errorf("%s: %v is left, %v", name, names, err)
		}
		_, err = two.Pull(t.Context(), "web", b.id, listed(res.List))
		if name != "a shorter pack" && err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
	two := newNode(t, b, "")
	if _, err := two.Pull(t.Context(), "web", [16]byte{9},
		listed(res.List)); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("another bucket's list: %v", err)
	}
	broken := object.Source{Reader: io.MultiReader(bytes.NewReader(res.List[:len(res.List)/2]))}
	if _, err := two.Pull(t.Context(), "web", b.id, broken); fault.ClassOf(err) != fault.Corrupt {
		t.Errorf("half a list: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestLongList pulls by a list that tells of far more packs and chunks than the checkpoint needs: it is learned of
// piece by piece.
func TestLongList(t *testing.T) {
	b := newShelf()
	one := newNode(t, b, "")
	files := one.fill(t, "web", 1, 2<<20)
	res := one.upload(t, b, "web")
	l := &object.List{}
	must(t, object.Decode(listed(res.List), b.id, object.Visitor{
		Pack:  func(_ uint32, p object.PackRef) error { l.Packs = append(l.Packs, p); return nil },
		Chunk: func(c pack.Chunk) error { l.Chunks = append(l.Chunks, c); return nil },
		Record: func(kv pack.KV) error {
			l.Records = append(l.Records, pack.KV{Key: kv.Key, Value: bytes.Clone(kv.Value)})
			return nil
		},
	}))
	for i := range 30 {
		l.Packs = append(l.Packs, object.PackRef{Name: object.Name{9, 19: byte(i)}, Size: 64 << 20})
		for page := range uint32(5000) {
			c := pack.Chunk{Loc: pack.Loc{Pack: uint32(len(l.Packs)), Page: page, Stored: 4096, Raw: 4096}}
			c.ID[0], c.ID[1], c.ID[2], c.ID[3] = byte(i), byte(page), byte(page>>8), 0xee
			l.Chunks = append(l.Chunks, c)
		}
	}
	list, err := l.Encode(b.id)
	must(t, err)
	two := newNode(t, b, "")
	_, err = two.Pull(t.Context(), "web", b.id, listed(list))
	must(t, err)
	must(t, two.holds("web", files))
	must(t, two.Close())
	two.open(t, b)
	must(t, two.holds("web", files))
}

// TestNoParent pulls an incremental checkpoint without the one that it needs.
func TestNoParent(t *testing.T) {
	b := newShelf()
	one := newNode(t, b, "")
	one.fill(t, "first", 1, 1<<20)
	d, err := one.Create(t.Context(), "second", CreateOptions{})
	must(t, err)
	must(t, d.SetParent("first"))
	_, err = d.Seal(t.Context())
	must(t, err)
	first, second := one.upload(t, b, "first"), one.upload(t, b, "second")
	two := newNode(t, b, "")
	if _, err := two.Pull(t.Context(), "second", b.id,
		listed(second.List)); fault.ClassOf(err) != fault.NotFound {
		t.Errorf("pulled without its parent: %v", err)
	}
	_, err = two.Pull(t.Context(), "first", b.id, listed(first.List))
	must(t, err)
	_, err = two.Pull(t.Context(), "second", b.id, listed(second.List))
	must(t, err)
}
