package restore

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

// link is a way to a server that can be cut.
type link struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
	all   sync.WaitGroup
}

// newLink gives a way to a server, which ends with the test.
func newLink(t *testing.T, endpoint string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	k := &link{listener: l, to: strings.TrimPrefix(endpoint, "http://"), conns: map[net.Conn]bool{}}
	k.all.Go(k.serve)
	t.Cleanup(func() {
		l.Close()
		k.setCut(true)
		k.all.Wait()
	})
	return k
}

func (k *link) endpoint() string { return "http://" + k.listener.Addr().String() }

func (k *link) serve() {
	for {
		c, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.all.Go(func() { k.carry(c) })
	}
}

func (k *link) carry(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", k.to)
	if err != nil {
		return
	}
	defer s.Close()
	k.mu.Lock()
	if k.cut {
		k.mu.Unlock()
		return
	}
	k.conns[c], k.conns[s] = true, true
	k.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { io.Copy(s, c); s.Close() })
	io.Copy(c, s)
	c.Close()
	both.Wait()
	k.mu.Lock()
	delete(k.conns, c)
	delete(k.conns, s)
	k.mu.Unlock()
}

// setCut cuts the link, also in the middle of what it carries, or mends it.
func (k *link) setCut(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = cut
	for c := range k.conns {
		if cut {
			c.Close()
		}
	}
}

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
	x := one.dumped("web-7", quiet)
	if _, err := two.try("restore", two.store, "web-7"); err == nil || !strings.Contains(err.Error(), "web-7") {
		t.Fatalf("restored before it was there: %v", err)
	}
	if out := one.run("sync", one.store); !strings.Contains(out, "web-7: sent") {
		t.Errorf("sync says:\n%s", out)
	}
	if out := one.run("sync", one.store); !strings.Contains(out, "web-7: was there") {
		t.Errorf("a second sync says:\n%s", out)
	}
	if out := two.run("ls", "--remote", two.store); !strings.Contains(out, "web-7") {
		t.Errorf("ls --remote says:\n%s", out)
	}
	x.b = two
	x.mustRestore("--wait")
	x.checks()
	must(t, two.left.Nothing())
	x.mustRestore() // with its profile, from the node's cache
	x.checks()
	must(t, two.left.Nothing())

	one.run("rm", "--remote", "-y", one.store, "web-7")
	if out := one.run("gc", "--remote", "--patience", "1ms", one.store); !strings.Contains(out, "removed ") {
		t.Errorf("gc --remote says:\n%s", out)
	}
	if out := two.run("ls", "--remote", two.store); strings.Contains(out, "web-7") {
		t.Errorf("removed, and still listed:\n%s", out)
	}
	x.mustRestore() // all of it is here by now
	x.checks()
}

// The link to the bucket is cut at a random moment of a restore and mended a second later: the process goes on with
// right memory, or the restore says what is wrong.
func TestLinkCut(t *testing.T) {
	s := newServer(t)
	rnd := source(t)
	k := newLink(t, s.Endpoint)
	one := withRemote(t, s.Endpoint)
	x := one.dumped("web", lazytarget.Options{MB: 48, Threads: 1, Seed: 3, Quiet: true})
	one.run("sync", one.store)
	lived := 0
	for range *strikes {
		two := withRemote(t, k.endpoint())
		x.b = two
		after := time.Duration(rnd.IntN(600)) * time.Millisecond
		var cutting sync.WaitGroup
		cutting.Go(func() {
			time.Sleep(after)
			k.setCut(true)
			time.Sleep(time.Second)
			k.setCut(false)
		})
		out, err := x.restore("--wait")
		cutting.Wait()
		switch {
		case err == nil:
			lived++
			x.checks()
		case !strings.Contains(err.Error(), "hint"):
			t.Errorf("cut after %v: %v\n%s", after, err, out)
		default:
			x.Kill()
		}
		must(t, two.left.Nothing())
	}
	t.Logf("%d of %d restores went on", lived, *strikes)
	if lived == 0 {
		t.Error("no restore outlived a second without the link")
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

// A sync is killed at a random moment: the checkpoint stands in the bucket, whole, or it is not there; the next sync
// takes it there at once.
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
		time.Sleep(time.Duration(rnd.Int64N(int64(whole))))
		cmd.Process.Kill()
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
	t.Logf("%d of %d were killed before they ended, which takes %v", killed, *strikes, whole)
	if killed == 0 {
		t.Error("none was killed before it ended")
	}
}
