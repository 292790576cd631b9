package restore

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/s3"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

// withRemote makes a store whose remote store is reached at an endpoint.
func withRemote(t *testing.T, endpoint string) *bench {
	t.Helper()
	b := &bench{t: t, store: filepath.Join(t.TempDir(), "store")}
	b.run("init", "--remote", "s3://checkpoints/team?endpoint="+endpoint+"&region=us-east-1", b.store)
	return b.watched()
}

func newServer(t *testing.T) *s3server.Server {
	t.Helper()
	s := s3server.Start(t)
	s.Bucket(t, "checkpoints")
	t.Setenv("AWS_ACCESS_KEY_ID", s3server.KeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3server.Secret)
	return s
}

// A process dumped on one machine is restored on another that has never seen it; its memory comes from the bucket.
func TestRestoreFromTheBucket(t *testing.T) {
	s := newServer(t)
	one, two := withRemote(t, s.Endpoint), withRemote(t, s.Endpoint)
	if _, err := two.try("restore", two.store, "web-7"); err == nil || !strings.Contains(err.Error(), "web-7") {
		t.Fatalf("restored before it was there: %v", err)
	}
	x := one.dumped("web-7", quiet)
	one.run("sync", one.store) // or the daemon has done so
	if out := one.run("sync", one.store); !strings.Contains(out, "web-7: was there") {
		t.Errorf("a second sync says:\n%s", out)
	}
	if got := one.place("web-7"); got != "durable" {
		t.Errorf("synced, and %s", got)
	}
	if out := two.run("ls", "--remote", two.store); !strings.Contains(out, "web-7") {
		t.Errorf("ls --remote says:\n%s", out)
	}
	for _, out := range []string{
		one.run("verify", "--remote", one.store), one.run("verify", "--remote", "--read-data-subset", "5%", one.store),
	} {
		if !strings.Contains(out, "sound: 1 checkpoints, 1 packs") {
			t.Errorf("verify --remote says:\n%s", out)
		}
	}
	x.b = two
	x.mustRestore("--wait")
	x.checks()
	must(t, two.left.Nothing())
	du := two.run("du", "--price", "get=1000,put=2000", two.store)
	if c := column(du, "cache"); !strings.Contains(c, "MiB, of 32") {
		t.Errorf("du tells of the cache %q", c)
	}
	if c := column(du, "bucket"); !strings.Contains(c, "MiB in 8 objects") || !strings.Contains(c, "in 4 packs") {
		t.Errorf("du tells of the bucket %q", c)
	}
	if c := column(du, "get"); strings.HasPrefix(c, "0 requests") || strings.Contains(c, " 0.00 a month") {
		t.Errorf("du tells of requests %q", c)
	}
	x.mustRestore() // with its profile, from the node's cache
	x.checks()
	must(t, two.left.Nothing())

	one.run("rm", "--remote", "-y", one.store, "web-7")
	if out := one.run("gc", "--remote", "-n", one.store); !strings.Contains(out, "would remove 0 packs") {
		t.Errorf("gc --remote -n says:\n%s", out)
	}
	if out := one.run("gc", "--remote", "--patience", "1h", one.store); !strings.Contains(out, "removed 0 packs") ||
		!strings.Contains(out, "2 pushes, removed checkpoints, removed hot sets and older lists") {
		t.Errorf("gc --remote says:\n%s", out)
	}
	if out := one.run("gc", "--remote", "--patience", "1ms", one.store); strings.Contains(out, "removed 0 packs") {
		t.Errorf("a later gc --remote, which has seen that before, says:\n%s", out)
	}
	if out := two.run("ls", "--remote", two.store); strings.Contains(out, "web-7") {
		t.Errorf("removed, and still listed:\n%s", out)
	}
	for _, b := range []*bench{one, two} {
		if got := b.place("web-7"); got != "local" {
			t.Errorf("removed from the remote store, and %s", got)
		}
	}
	x.mustRestore() // all of it is here by now
	x.checks()
}

// place gives where a checkpoint is, as ls says.
func (b *bench) place(name string) string {
	b.t.Helper()
	var res struct {
		Checkpoints []struct{ Name, Place string }
	}
	must(b.t, program.JSON(b.t.Context(), &res, "ls", "--fast", b.store))
	for _, c := range res.Checkpoints {
		if c.Name == name {
			return c.Place
		}
	}
	return "nowhere"
}

// column gives what a table says behind a word.
func column(table, word string) string {
	for line := range strings.Lines(table) {
		if rest, ok := strings.CutPrefix(line, word+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// A node that has lost its store gets it back from the address of the bucket alone. What cannot be read there is named.
func TestNodeLost(t *testing.T) {
	s := newServer(t)
	one := withRemote(t, s.Endpoint)
	address := "s3://checkpoints/team?endpoint=" + s.Endpoint + "&region=us-east-1"
	x := one.start("web", quiet)
	one.run("dump", "--durable", one.store, "web", "-t", strconv.Itoa(x.pid))
	must(t, x.Dumped())
	must(t, one.left.Nothing())
	if out, err := one.try("repair", "--remote", address, one.store); cli.Code(err) != 2 {
		t.Errorf("a store that is there: %v\n%s", err, out)
	}
	must(t, os.RemoveAll(one.store))
	if out, err := one.try("repair", "--remote", address+"x", one.store); err == nil {
		t.Errorf("no remote store is there, and repair says:\n%s", out)
	}
	if out := one.run("repair", "--remote", address, one.store); !strings.Contains(out, "1 checkpoints") {
		t.Errorf("repair says:\n%s", out)
	}
	a, err := s3.Parse(address)
	must(t, err)
	far, err := s3.Open(a, s3.Options{})
	must(t, err)
	defer far.Close()
	_, err = far.Put(t.Context(), catalog.RootKey("damaged"), strings.NewReader("junk"), 4, bucket.Cond{})
	must(t, err)
	must(t, one.left.Nothing())
	must(t, os.RemoveAll(one.store))
	out, err := one.try("repair", "--remote", address, one.store)
	told := fmt.Sprint(out, err)
	if err == nil || !strings.Contains(told, "1 checkpoints") || !strings.Contains(told, catalog.RootKey("damaged")) {
		t.Errorf("repair beside a damaged root: %s", told)
	}
	x.mustRestore("--wait")
	x.checks()
}

// until waits for what a daemon does by itself.
func (b *bench) until(what string, done func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(limit); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("it never comes that %s", what)
		}
	}
}

// A daemon takes to the bucket what is sealed, by itself: after a dump that did not wait, once the link is mended after
// it was cut, and what another daemon that was killed has left. --durable and umount wait for it, or tell.
func TestUploadedBehind(t *testing.T) {
	s := newServer(t)
	k := newLink(t, s.Endpoint)
	b := withRemote(t, k.endpoint())
	x := b.start("web", quiet)
	b.run("dump", "--durable", b.store, "durable", "-t", strconv.Itoa(x.pid), "--leave-running")
	if got := b.place("durable"); got != "durable" {
		t.Errorf("dump --durable has returned, and it is %s", got)
	}
	b.run("dump", b.store, "behind", "-t", strconv.Itoa(x.pid), "--leave-running")
	b.until("the dump is durable", func() bool { return b.place("behind") == "durable" })

	mnt := t.TempDir()
	b.run("mount", b.store, mnt)
	k.setCut(true)
	out, err := b.try("dump", "--durable", b.store, "cut", "-t", strconv.Itoa(x.pid), "--leave-running")
	if cli.Code(err) != 3 || !strings.Contains(err.Error(), "gpucr-fs sync") {
		t.Errorf("dump --durable without a link: %v\n%s", err, out)
	}
	if got := b.place("cut"); got == "durable" {
		t.Errorf("without a link, %s", got)
	}
	b.until("stats tells why nothing is uploaded", func() bool {
		return strings.Contains(b.run("stats", b.store), "cut: ")
	})
	if out := b.run("umount", mnt); !strings.Contains(out, "not in the remote store yet: cut") {
		t.Errorf("umount says:\n%s", out)
	}
	k.setCut(false)
	must(t, b.left.Nothing())
	b.run("mount", b.store, mnt) // another daemon
	b.until("what the first one left is durable", func() bool { return b.place("cut") == "durable" })
	if out := b.run("umount", mnt); strings.Contains(out, "not in") {
		t.Errorf("umount says:\n%s", out)
	}
}

// Without a way to the bucket a store opens, and what it has itself is restored.
func TestBucketAway(t *testing.T) {
	s := newServer(t)
	k := newLink(t, s.Endpoint)
	b := withRemote(t, k.endpoint())
	x := b.dumped("here", quiet)
	k.setCut(true)
	x.mustRestore("--wait")
	x.checks()
	if _, err := b.try("sync", b.store); err == nil || !strings.Contains(err.Error(), "remote") {
		t.Errorf("synced without a way: %v", err)
	}
	if states, err := program.States(t.Context(), b.store); err != nil || states["here"] != index.Sealed {
		t.Errorf("ls says %v, %v", states, err)
	}
	k.setCut(false)
	b.run("sync", b.store)
}

// A sync is killed at a random moment, and so is the daemon that uploads: the checkpoint stands in the bucket, whole,
// or it is not there; the next sync takes it there at once.
func TestSyncKilled(t *testing.T) {
	s := newServer(t)
	rnd := source(t)
	one := withRemote(t, s.Endpoint)
	one.dumped("first", quiet)
	began := time.Now()
	one.run("sync", one.store)
	whole := time.Since(began)
	killed := 0
	for i := range *strikes {
		name := fmt.Sprintf("web-%d", i)
		x := one.dumped(name, lazytarget.Options{MB: 48, Threads: 1, Seed: uint64(10 + i), Quiet: true})
		cmd := program.Command("sync", one.store, name)
		must(t, cmd.Start())
		at := time.Duration(rnd.Int64N(int64(whole)))
		if i == 0 {
			at = min(at, whole/8) // one at least is not over yet
		}
		time.Sleep(at)
		for _, pid := range append(program.Role("daemon"), cmd.Process.Pid) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if cmd.Wait() != nil {
			killed++
		}
		two := withRemote(t, s.Endpoint)
		if out := two.run("ls", "--remote", two.store); strings.Contains(out, name) {
			two.run("pull", two.store, name)
			two.run("export", two.store, name, filepath.Join(t.TempDir(), name)) // reads all of it
		}
		one.run("sync", one.store, name)
		two.run("verify", two.store)
		x.b = two
		x.mustRestore("--wait")
		x.checks()
		must(t, two.left.Nothing())
	}
	one.run("verify", one.store)
	mnt := t.TempDir()
	one.run("mount", one.store, mnt) // a daemon that clears away what the killed ones left
	one.run("umount", mnt)
	t.Logf("%d of %d were killed before they ended, which takes %v", killed, *strikes, whole)
	if killed == 0 {
		t.Error("none was killed before it ended")
	}
}

// A process's images lie in a pack that was written for a checkpoint which is removed. gc --remote repacks it, and the
// process is restored on a machine that has pulled it before, and on one that has never seen it.
func TestRestoreOfRepacked(t *testing.T) {
	s := newServer(t)
	images := filepath.Join(t.TempDir(), "images")
	plain := newBench(t)
	x := plain.dumped("web", quiet)
	plain.run("export", plain.store, "web", images)
	one, before, after := withRemote(t, s.Endpoint), withRemote(t, s.Endpoint), withRemote(t, s.Endpoint)
	// The pack object in which the noise ends has less of the process than of the noise.
	noise := make([]byte, 100<<20)
	rand.NewChaCha8([32]byte{1}).Read(noise)
	must(t, os.WriteFile(filepath.Join(images, "noise"), noise, 0o600))
	one.run("import", one.store, "big", images)
	one.run("sync", one.store)
	must(t, os.Remove(filepath.Join(images, "noise")))
	one.run("import", one.store, "web", images)
	one.run("sync", one.store)
	before.run("pull", before.store, "web")
	one.run("rm", "--remote", "-y", one.store, "big")
	if out := one.run("gc", "--remote", "-n", one.store); !strings.Contains(out, "would repack 1 packs") {
		t.Errorf("gc --remote -n says:\n%s", out)
	}
	if out := one.run("gc", "--remote", "--max-repack", "0", one.store); strings.Contains(out, "repack") {
		t.Errorf("gc --remote --max-repack 0 says:\n%s", out)
	}
	out := one.run("gc", "--remote", "--patience", "1ms", one.store)
	if !strings.Contains(out, "repacked 1 packs less than half") || !strings.Contains(out, "1 checkpoints have") {
		t.Errorf("gc --remote says:\n%s", out)
	}
	t.Logf("gc --remote says:\n%s", out)
	if out := one.run("gc", "--remote", "--patience", "1ms", one.store); strings.Contains(out, "removed 0 packs") {
		t.Errorf("the next gc --remote says:\n%s", out)
	}
	if out := one.run("verify", "--remote", one.store); !strings.Contains(out, "sound: 1 checkpoints") {
		t.Errorf("verify --remote says:\n%s", out)
	}
	for _, b := range []*bench{before, after} {
		x.b = b
		x.mustRestore("--wait")
		x.checks()
		must(t, b.left.Nothing())
	}
}
