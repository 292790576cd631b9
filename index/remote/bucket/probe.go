package bucket

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
)

const (
	racers      = 8
	probeRounds = 8
	replacings  = 32
	readers     = 4
	probePrefix = "probe/"
	probeHint   = "choose a server that does conditional writes (If-None-Match and If-Match on PUT) atomically, or a " +
		"later version of this one; on this one checkpoints could be lost"
	probeLimit = 1 << 10
)

// Found is what Probe found beyond what every bucket must do.
type Found struct {
	// ConditionalDelete says that a removal with IfMatch happens only when the ETag is the object's.
	ConditionalDelete bool
}

// Probe finds out whether conditional writes hold when eight clients race, over several rounds, whether writes and
// removals are seen at once by reads and listings, and whether a read gives an ETag with its own content. A bucket
// where that is not so is refused with class Unsupported and a hint. It writes under probe/ and removes what it wrote.
// It makes about 500 requests.
func Probe(ctx context.Context, b Bucket) (Found, error) {
	p := &probe{ctx: ctx, b: b, dir: probePrefix + nonce() + "/"}
	err := p.run()
	if cerr := p.clean(); err == nil {
		err = cerr
	}
	return p.found, err
}

type probe struct {
	ctx   context.Context
	b     Bucket
	dir   string
	found Found
}

func (p *probe) run() error {
	for round := range probeRounds {
		key := fmt.Sprintf("%s%d", p.dir, round)
		if err := p.missing(key); err != nil {
			return err
		}
		etag, err := p.race(key, IfAbsent, "If-None-Match: *")
		if err != nil {
			return err
		}
		// A second race begins from a state that all its racers know.
		last, err := p.race(key, IfMatch(etag), "If-Match")
		if err != nil {
			return err
		}
		if err := p.stale(key, etag); err != nil {
			return err
		}
		if err := p.listed(key, last); err != nil {
			return err
		}
	}
	if err := p.whole(p.dir + "0"); err != nil {
		return err
	}
	return p.deletes()
}

// missing writes with If-Match where there is nothing.
func (p *probe) missing(key string) error {
	_, err := p.put(key, "nothing there", IfMatch("0123456789abcdef0123456789abcdef"))
	if err := p.refused(err, "If-Match on an object that does not exist"); err != nil {
		return err
	}
	if _, err := p.b.Stat(p.ctx, key); ClassOf(err) != NotFound {
		if err != nil {
			return err
		}
		return p.refuse("a refused write with If-Match made an object")
	}
	return nil
}

// stale writes with conditions that do not hold, one after the other.
func (p *probe) stale(key, old string) error {
	_, err := p.put(key, "stale", IfMatch(old))
	if err := p.refused(err, "If-Match with the ETag of an object that was replaced"); err != nil {
		return err
	}
	_, err = p.put(key, "exists", IfAbsent)
	return p.refused(err, "If-None-Match: * on an object that exists")
}

type try struct {
	body, etag string
	err        error
}

// race lets clients write at once with the same condition, which one of them must get. It gives the winner's ETag.
func (p *probe) race(key string, cond Cond, what string) (string, error) {
	tries := make([]try, racers)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range tries {
		t := &tries[i]
		t.body = nonce()
		wg.Go(func() {
			<-start
			t.etag, t.err = p.put(key, t.body, cond)
		})
	}
	close(start)
	wg.Wait()

	content, info, err := ReadAll(p.ctx, p.b, key, probeLimit)
	if err != nil && ClassOf(err) != NotFound {
		return "", err
	}
	stands, won, doubtful := -1, 0, 0
	for i, t := range tries {
		if string(content) == t.body {
			stands = i
		}
		switch {
		case t.err == nil:
			won++
		case ClassOf(t.err) == Transient:
			doubtful++
		case ClassOf(t.err) != Precondition:
			return "", t.err
		}
	}
	switch {
	case won > 1:
		return "", p.refuse("of %d clients that wrote at once with %s, %d succeeded", racers, what, won)
	case won == 0 && doubtful == 0:
		return "", p.refuse("of %d clients that wrote at once with %s, none succeeded", racers, what)
	case stands < 0 && won == 0:
		return "", Fail(Transient, "probe", "", "%d of %d writes had no answer", doubtful, racers)
	case stands < 0, ClassOf(tries[stands].err) == Precondition, won == 1 && tries[stands].err != nil:
		return "", p.refuse("after a race with %s the object is not that of the client that was told it won", what)
	case won == 1 && tries[stands].etag != info.ETag:
		return "", p.refuse("a write gave another ETag than reading the object does")
	}
	return info.ETag, nil
}

// whole replaces an object many times while others read it. Who reads an old content with the ETag of a newer one would
// take back what others wrote: its next write with If-Match succeeds.
func (p *probe) whole(key string) error {
	type pair struct{ body, etag string }
	var reads [readers][]pair
	var errs [readers]error
	var wg sync.WaitGroup
	done := make(chan struct{})
	for i := range readers {
		wg.Go(func() {
			for ended := false; !ended && errs[i] == nil; {
				select {
				case <-done:
					ended = true
				default:
				}
				content, info, err := ReadAll(p.ctx, p.b, key, probeLimit)
				switch {
				case err == nil:
					reads[i] = append(reads[i], pair{string(content), info.ETag})
				case ClassOf(err) != Transient:
					errs[i] = err
				}
			}
		})
	}
	bodies, etags := map[string]int{}, map[string]int{} // the number of the write that each is of, from 1 on
	var failed error
	for n := 1; n <= replacings && failed == nil; n++ {
		body := nonce()
		etag, err := p.put(key, body, Cond{})
		switch {
		case err == nil:
			bodies[body], etags[etag] = n, n
		case ClassOf(err) != Transient:
			failed = err
		}
	}
	close(done)
	wg.Wait()
	for _, err := range append(errs[:], failed) {
		if err != nil {
			return err
		}
	}
	for _, r := range slices.Concat(reads[:]...) {
		if etags[r.etag] > bodies[r.body] {
			return p.refuse("a read gave what an object had before, with the ETag of what replaced it")
		}
	}
	return nil
}

// listed compares what a listing tells with what was written.
func (p *probe) listed(key, etag string) error {
	for info, err := range All(p.ctx, p.b, key) {
		if err != nil {
			return err
		}
		if info.Key == key && info.ETag == etag {
			return nil
		}
	}
	return p.refuse("a listing does not show an object that was just written")
}

// deletes removes the rounds' objects, and finds out what a condition on a removal does.
func (p *probe) deletes() error {
	key := p.dir + "0"
	err := p.b.Delete(p.ctx, key, IfMatch("0123456789abcdef0123456789abcdef"))
	wrong := ClassOf(err) == Precondition
	info, err := p.b.Stat(p.ctx, key)
	if err != nil && ClassOf(err) != NotFound {
		return err
	}
	if wrong && err == nil {
		right := p.b.Delete(p.ctx, key, IfMatch(info.ETag))
		_, err = p.b.Stat(p.ctx, key)
		p.found.ConditionalDelete = right == nil && ClassOf(err) == NotFound
	}
	return nil
}

// clean removes what the probe wrote, also when its context has ended meanwhile.
func (p *probe) clean() error {
	ctx := context.WithoutCancel(p.ctx)
	var keys []string
	for info, err := range All(ctx, p.b, p.dir) {
		if err != nil {
			return err
		}
		keys = append(keys, info.Key)
	}
	for _, key := range keys {
		if err := p.b.Delete(ctx, key, Cond{}); err != nil {
			return err
		}
		if _, err := p.b.Stat(ctx, key); err == nil {
			return p.refuse("an object is still there after it was removed")
		}
	}
	return nil
}

func (p *probe) put(key, body string, cond Cond) (string, error) {
	return p.b.Put(p.ctx, key, bytes.NewReader([]byte(body)), int64(len(body)), cond)
}

// refused turns the outcome of a write that must not happen into the probe's.
func (p *probe) refused(err error, what string) error {
	switch {
	case err == nil:
		return p.refuse("a write with %s succeeded", what)
	case ClassOf(err) == Precondition:
		return nil
	}
	return err
}

func (p *probe) refuse(format string, args ...any) error {
	return &Error{Class: Unsupported, Op: "probe", Hint: probeHint,
		Err: errors.New("this bucket does not keep conditional writes: " + fmt.Sprintf(format, args...))}
}

// nonce gives 32 hex digits that nobody else has.
func nonce() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
