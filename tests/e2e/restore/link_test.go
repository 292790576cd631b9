package restore

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
	"github.com/gpucr/gpucr-fs/tests/slowlink"
)

// link is a way to a server that can be cut, and that alters what the server answers.
type link struct {
	listener net.Listener
	to       string
	alters   atomic.Int64 // of so many bytes one is another, as a mean; 0: none
	altered  atomic.Int64 // bytes

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
	io.Copy(&altering{c, k}, s)
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

// altering alters what is written.
type altering struct {
	to io.Writer
	k  *link
}

func (a *altering) Write(p []byte) (int, error) {
	if mean := a.k.alters.Load(); mean > 0 {
		p = bytes.Clone(p)
		for i := rand.Int64N(2 * mean); i < int64(len(p)); i += rand.Int64N(2 * mean) {
			p[i] ^= 1 << rand.IntN(8)
			a.k.altered.Add(1)
		}
	}
	return a.to.Write(p)
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
	t.Logf("%d of %d restores went on, the others said why not", lived, *strikes)
	if lived == 0 {
		t.Error("no restore outlived a second without the link")
	}
}

// What the bucket answers is altered on its way for a while that begins at a random moment of a restore: the process
// goes on with right memory, or the restore says what is wrong.
func TestLinkAlters(t *testing.T) {
	s := newServer(t)
	rnd := source(t)
	k := newLink(t, s.Endpoint)
	one := withRemote(t, s.Endpoint)
	x := one.dumped("web", lazytarget.Options{MB: 48, Threads: 1, Seed: 4, Quiet: true})
	one.run("sync", one.store)
	lived, tries := 0, (*strikes+1)/2
	for range tries {
		two := withRemote(t, k.endpoint())
		x.b = two
		after := time.Duration(rnd.IntN(400)) * time.Millisecond
		mean := int64(1) << (12 + rnd.IntN(12))
		var altering sync.WaitGroup
		altering.Go(func() {
			time.Sleep(after)
			k.alters.Store(mean)
			time.Sleep(time.Second)
			k.alters.Store(0)
		})
		_, err := x.restore("--wait")
		altering.Wait()
		if err == nil {
			lived++
			x.checks()
		} else {
			t.Logf("one byte of %d altered after %v: %v", mean, after, err)
			x.Kill()
		}
		must(t, two.left.Nothing())
	}
	t.Logf("%d of %d restores went on, the others said why not; %d bytes were altered", lived, tries,
		k.altered.Load())
	if lived == 0 {
		t.Error("no restore outlived a second of altered answers")
	}
}

// Threads that need memory from a bucket that cannot be reached wait: they go on when it comes back, and see after
// --remote-timeout what they see where memory cannot be read.
func TestRemoteTimeout(t *testing.T) {
	s := newServer(t)
	slow, err := slowlink.Start(strings.TrimPrefix(s.Endpoint, "http://"), slowlink.Rates{All: 6e6})
	must(t, err)
	t.Cleanup(func() { slow.Close() })
	k := newLink(t, "http://"+slow.Address())
	one := withRemote(t, s.Endpoint)
	x := one.dumped("web", lazytarget.Options{MB: 36, Threads: 1, Seed: 5, Quiet: true})
	one.run("sync", one.store)
	for _, delayed := range []bool{true, false} {
		x.b = withRemote(t, k.endpoint())
		if delayed {
			x.mustRestore()
			k.setCut(true)
			mended := time.AfterFunc(2*time.Second, func() { k.setCut(false) })
			must(t, x.Check(1, limit))
			mended.Stop()
			x.Kill()
		} else {
			x.Reset()
			x.Damaged()
			x.b.run("restore", x.b.store, x.name, "--remote-timeout", "3s")
			x.Restored(x.pid)
			k.setCut(true)
			must(t, x.StopDamaged(limit))
			if !x.Lacked() {
				t.Errorf("the bucket was away for good, and all memory was there: %s", x)
			}
			x.Kill()
		}
		k.setCut(false)
		must(t, x.b.left.Nothing())
	}
}
