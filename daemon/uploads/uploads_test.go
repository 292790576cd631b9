package uploads

import (
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/daemon/lifetime"
	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var quiet = slog.New(slog.DiscardHandler)

// node is a machine with a daemon's parts.
type node struct {
	t        *testing.T
	dir      string
	store    *index.Store
	remote   *remotes.Remote
	lifetime *lifetime.Lifetime
	up       *Uploads
}

func newNode(t *testing.T, address string) *node {
	t.Helper()
	n := &node{t: t, dir: filepath.Join(t.TempDir(), "store")}
	f, _, _, err := remotes.Make(t.Context(), address, 1<<30, index.DefaultParams(), remotes.Keys{}, quiet)
	must(t, err)
	text, err := json.Marshal(f)
	must(t, err)
	must(t, index.Init(n.dir, index.InitOptions{Beside: map[string][]byte{remotes.FileName: text}}))
	n.open()
	t.Cleanup(n.close)
	return n
}

// open starts a daemon's parts on the node's store.
func (n *node) open() {
	n.t.Helper()
	o := index.Options{FreeFloor: 1}
	var err error
	n.remote, err = remotes.Of(n.dir, &o, quiet)
	must(n.t, err)
	n.store, err = index.Open(n.t.Context(), n.dir, o)
	must(n.t, err)
	n.remote.Serve(n.store)
	n.lifetime = lifetime.New()
	n.lifetime.Hold()
	n.up = Start(Options{Store: n.store, Remote: n.remote, Lifetime: n.lifetime, Log: quiet})
}

// close ends them. Once the store is closed, and with that its lock is free, nothing is written in it any more.
func (n *node) close() {
	n.up.Close()
	if err := n.store.Close(); err != nil {
		n.t.Error(err)
	}
	was, err := os.Stat(n.dir)
	must(n.t, err)
	n.remote.Close()
	if is, err := os.Stat(n.dir); err != nil || !is.ModTime().Equal(was.ModTime()) {
		n.t.Errorf("the folder of a closed store was changed: %v", err)
	}
}

func (n *node) collect(patience time.Duration) (remotes.Collected, error) {
	return n.remote.Collect(n.t.Context(), remotes.CollectOptions{Patience: patience})
}

func (n *node) dump(name, text string) {
	n.t.Helper()
	d, err := n.store.Create(n.t.Context(), name, index.CreateOptions{})
	must(n.t, err)
	f, err := d.Create("file", 0o600)
	must(n.t, err)
	_, err = f.WriteAt([]byte(strings.Repeat(text, 2000)), 0)
	must(n.t, err)
	must(n.t, f.Close())
	_, err = d.Seal(n.t.Context())
	must(n.t, err)
}

func (n *node) place(name string) string {
	n.t.Helper()
	i, err := n.store.Info(name)
	must(n.t, err)
	return n.up.Place(i)
}

func (n *node) settle() {
	n.t.Helper()
	must(n.t, n.up.Settle(n.t.Context(), func(State) {}))
}

// restartPutsNothing starts the daemon anew, which has nothing to take to the bucket.
func (n *node) restartPutsNothing() {
	n.t.Helper()
	puts := func() int64 { return n.remote.Requests().Kinds[bucket.KindPut].Requests }
	before := puts()
	n.close()
	n.open()
	n.settle()
	if after := puts(); after != before {
		n.t.Errorf("%d puts, and after a restart %d", before, after)
	}
}

// newBucket starts a server with a bucket, and gives the address of a remote store in it.
func newBucket(t *testing.T) (s *s3server.Server, address string) {
	t.Helper()
	s = s3server.Start(t)
	s.Bucket(t, "checkpoints")
	t.Setenv("AWS_ACCESS_KEY_ID", s3server.KeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3server.Secret)
	return s, "s3://checkpoints/p?endpoint=" + s.Endpoint + "&region=us-east-1"
}

// TestBehind seals checkpoints, which come to the bucket by themselves and once: not after a restart, not when they
// came from there, and not when they were removed there. Take takes them there all the same.
func TestBehind(t *testing.T) {
	_, address := newBucket(t)
	one, two := newNode(t, address), newNode(t, address)
	one.dump("a", "some text")
	one.lifetime.Release() // what sealed it goes
	one.settle()
	select {
	case <-one.lifetime.Idle():
	case <-time.After(time.Minute):
		t.Fatal("with all uploaded, the daemon is held")
	}
	if got := one.place("a"); got != Durable {
		t.Errorf("sealed, and %s", got)
	}
	_, err := two.remote.Pull(t.Context(), two.store, "a", "theirs")
	must(t, err)
	two.settle()
	if got := two.place("theirs"); got != Durable {
		t.Errorf("pulled, and %s", got)
	}

	puts := func(n *node) int64 { return n.remote.Requests().Kinds[bucket.KindPut].Requests }
	before := puts(one)
	one.close()
	one.open()
	one.settle()
	if after := puts(one); before == 0 || after != before {
		t.Errorf("%d puts, and after a restart %d", before, after)
	}

	r, err := one.remote.Store(t.Context())
	must(t, err)
	must(t, r.Remove(t.Context(), "a"))
	one.remote.NoteRemoved("a")
	one.dump("b", "other text")
	one.settle()
	lacking, err := one.up.Lacking(t.Context())
	if err != nil || len(lacking) != 1 || lacking[0] != "a" || one.place("b") != Durable {
		t.Errorf("the bucket lacks %v, b is %s, %v", lacking, one.place("b"), err)
	}
	if list, err := r.List(t.Context()); err != nil || len(list) != 1 || list[0].Name != "b" {
		t.Errorf("removed there, and the list is %v, %v", list, err)
	}
	// A collection does not wait: what it saw counts for the next, also of another process.
	if res, err := one.collect(time.Hour); err != nil || res.Packs != 0 || res.Watched != 1 {
		t.Errorf("collected %+v, %v", res, err)
	}
	one.close()
	one.open()
	if res, err := one.collect(time.Nanosecond); err != nil || res.Packs != 2 || res.Watched != 0 {
		t.Errorf("collected %+v, %v", res, err)
	}
	r, err = one.remote.Store(t.Context())
	must(t, err)
	told := int64(0)
	p, err := one.up.Take(t.Context(), r, "a", func(done, _ int64) { told = done })
	if err != nil || p.Already || told == 0 || one.place("a") != Durable {
		t.Errorf("taken: %+v, %v; %d bytes told, %s", p, err, told, one.place("a"))
	}
}

// TestProfiles: what a restore learns of a checkpoint that is in the bucket already comes there too, also when the
// daemon was killed before, and is there for the next machine; once, and no longer than the checkpoint.
func TestProfiles(t *testing.T) {
	s, address := newBucket(t)
	one, two := newNode(t, address), newNode(t, address)
	one.dump("a", "some text")
	one.settle()
	pull := func(n *node) string {
		t.Helper()
		_, err := n.remote.Pull(t.Context(), n.store, "a", "a")
		must(t, err)
		p, err := n.store.Profile("a")
		if err != nil && index.ClassOf(err) != index.NotFound {
			t.Error(err)
		}
		return string(p)
	}
	if p := pull(two); p != "" {
		t.Errorf("nobody has learned anything, and there is a profile %q", p)
	}
	must(t, two.store.SetProfile("a", []byte("first")))
	two.lifetime.Hold()
	two.up.Learned("a")
	two.lifetime.Release()
	two.settle()
	if p := pull(newNode(t, address)); p != "first" {
		t.Errorf("learned on another machine, and it is %q", p)
	}
	must(t, two.store.SetProfile("a", []byte(strings.Repeat("longer", 30000))))
	two.close() // before it is taken there
	two.open()
	two.settle()
	if p := pull(newNode(t, address)); p != strings.Repeat("longer", 30000) {
		t.Errorf("learned before a daemon was killed, and it is %d bytes, %.20q", len(p), p)
	}
	// What was learned since goes there without a daemon, too.
	must(t, two.store.SetProfile("a", []byte("without a daemon")))
	r, err := two.remote.Store(t.Context())
	must(t, err)
	p, err := Idle(two.store, two.remote, quiet).Take(t.Context(), r, "a", func(int64, int64) {})
	if err != nil || !p.Already {
		t.Errorf("taken: %+v, %v", p, err)
	}
	two.remote.SaveRequests()
	if p := pull(newNode(t, address)); p != "without a daemon" {
		t.Errorf("learned, then taken without a daemon, and it is %q", p)
	}
	two.restartPutsNothing()

	r, err = one.remote.Store(t.Context())
	must(t, err)
	objects := func() int {
		kept, err := os.ReadDir(filepath.Join(s.Dir(), "checkpoints", "p", "profiles"))
		if err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
		return len(kept)
	}
	if _, err := one.collect(time.Nanosecond); err != nil || objects() != 1 {
		t.Errorf("%d profiles of a checkpoint that stands, %v", objects(), err)
	}
	must(t, r.Remove(t.Context(), "a"))
	if _, err := one.collect(time.Nanosecond); err != nil || objects() != 0 {
		t.Errorf("%d profiles of no checkpoint, %v", objects(), err)
	}
}

// learn gives a checkpoint what a restore with a daemon gives it.
func (n *node) learn(profile, hot string) {
	n.t.Helper()
	must(n.t, n.store.SetProfile("a", []byte(profile)))
	must(n.t, n.store.SetHotSet("a", int64(len(hot)), func(w io.Writer) error {
		_, err := io.WriteString(w, hot)
		return err
	}))
}

// TestHotSets: a hot set that was packed after its checkpoint was taken to the bucket comes there too, also when the
// daemon was killed before, and without a daemon by Take; the next machine has it with the checkpoint.
func TestHotSets(t *testing.T) {
	s, address := newBucket(t)
	one, two := newNode(t, address), newNode(t, address)
	one.dump("a", "some text")
	one.settle()
	_, err := two.remote.Pull(t.Context(), two.store, "a", "a")
	must(t, err)
	pull := func(want string) {
		t.Helper()
		n := newNode(t, address)
		_, err := n.remote.Pull(t.Context(), n.store, "a", "a")
		must(t, err)
		f, err := n.store.HotSet("a")
		must(t, err)
		defer f.Close()
		if b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size())); err != nil || string(b) != want {
			t.Errorf("the hot set is %.20q, %v, not %.20q", b, err, want)
		}
		n.settle()
		if puts := n.remote.Requests().Kinds[bucket.KindPut].Requests; puts != 0 {
			t.Errorf("what came from the bucket went there again: %d puts", puts)
		}
	}
	two.learn("first", "hot pages")
	two.lifetime.Hold()
	two.up.Learned("a")
	two.lifetime.Release()
	two.settle()
	pull("hot pages")

	two.learn("second", "other hot pages")
	two.close() // before it is taken there
	two.open()
	two.settle()
	pull("other hot pages")

	two.learn("third", "hot pages without a daemon")
	r, err := two.remote.Store(t.Context())
	must(t, err)
	take := func() {
		t.Helper()
		var told, of int64
		_, err := Idle(two.store, two.remote, quiet).Take(t.Context(), r, "a",
			func(done, total int64) { told, of = done, total })
		must(t, err)
		if told == 0 || told != of {
			t.Errorf("at the end %d bytes of %d are told to be there", told, of)
		}
		two.remote.SaveRequests()
	}
	take()
	pull("hot pages without a daemon")

	unchanged := func() {
		t.Helper()
		two.restartPutsNothing()
		r, err = two.remote.Store(t.Context())
		must(t, err)
	}
	unchanged()
	must(t, r.Remove(t.Context(), "a"))
	two.remote.NoteRemoved("a")
	take() // the hot set goes there with the checkpoint
	unchanged()
	must(t, r.Remove(t.Context(), "a"))
	for range 3 {
		_, err = two.collect(time.Nanosecond)
		must(t, err)
	}
	for _, dir := range []string{"packs", "profiles"} {
		left, err := os.ReadDir(filepath.Join(s.Dir(), "checkpoints", "p", dir))
		if err != nil && !os.IsNotExist(err) || len(left) > 0 {
			t.Errorf("of a removed checkpoint is left in %s: %v, %v", dir, left, err)
		}
	}
}

// TestNotes loses what is noted: it begins anew, and nothing fails.
func TestNotes(t *testing.T) {
	s := s3server.Start(t)
	s.Bucket(t, "checkpoints")
	t.Setenv("AWS_ACCESS_KEY_ID", s3server.KeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3server.Secret)
	n := newNode(t, "s3://checkpoints?endpoint="+s.Endpoint+"&region=us-east-1")
	n.dump("a", "some text")
	n.settle()
	_, err := n.collect(time.Hour)
	must(t, err)
	n.close()
	for _, name := range []string{"remote-has.json", "remote-requests.json", "remote-watched.json"} {
		must(t, os.WriteFile(filepath.Join(n.dir, name), []byte("{no JSON"), 0o600))
	}
	n.open()
	_, err = n.collect(time.Hour)
	must(t, err)
	n.settle()
	for deadline := time.Now().Add(time.Minute); n.place("a") != Durable; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it is in the bucket, and is %s", n.place("a"))
		}
	}
}

// What was pulled is not taken to the bucket again where the note of it is lost, as with a pull that was killed:
// somebody may have removed it there.
func TestPulledAndNotNoted(t *testing.T) {
	_, address := newBucket(t)
	one, two := newNode(t, address), newNode(t, address)
	one.dump("stands", "some text")
	one.dump("removed", "other text")
	one.settle()
	for _, name := range []string{"stands", "removed"} {
		_, err := two.remote.Pull(t.Context(), two.store, name, name)
		must(t, err)
	}
	must(t, two.store.Tag(t.Context(), "removed", []string{"tag"}, nil))
	_, err := one.remote.Remove(t.Context(), []string{"removed"})
	must(t, err)
	two.close()
	must(t, os.Remove(filepath.Join(two.dir, "remote-has.json")))
	two.open()
	two.settle()
	r, err := two.remote.Store(t.Context())
	must(t, err)
	list, err := r.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != "stands" || two.place("stands") != Durable {
		t.Errorf("the bucket has %v, %v; one that stands there is %s", list, err, two.place("stands"))
	}
	two.dump("own", "text of its own")
	two.settle()
	if two.place("own") != Durable {
		t.Error("what was written here was not taken to the bucket")
	}
}
