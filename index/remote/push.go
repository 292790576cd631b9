package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/upload"
)

// Node is the store of a machine.
type Node interface {
	Uploader(bucket [16]byte) *upload.Uploader
	Pull(ctx context.Context, name string, bucket [16]byte, list object.Source) (roots.Info, error)
	Info(ref string) (roots.Info, error)
	Knows(name object.Name) bool
	Stored(id string, first int) (ids []chunk.ID, waiting int, open bool)
	Learn(ctx context.Context, bucket [16]byte, list object.Source) error
	KeepLearned()
	Profile(ref string) ([]byte, error)
	SetProfile(ref string, profile []byte) error
	PullHot(ctx context.Context, id string, bucket [16]byte, list object.Source) error
}

// touchEvery is how often a push shows that it is there.
const touchEvery = time.Minute

// abortTime is how long a push that failed tries to give its name free.
const abortTime = 20 * time.Second

// Meta is what a root says of its checkpoint.
type Meta struct {
	ID      string            `json:"id"`   // of the checkpoint
	List    string            `json:"list"` // the pack that is its list
	Sealed  time.Time         `json:"sealed"`
	Logical int64             `json:"logical"` // bytes of its files
	Zero    int64             `json:"zero"`
	Files   int               `json:"files"`
	Labels  map[string]string `json:"labels,omitempty"`
	// The checkpoint that this one is built on: its name in the remote store, and its id.
	Parent   string `json:"parent,omitempty"`
	ParentID string `json:"parent_id,omitempty"`
	// Profile of the root of a hot set is the CRC-32C of the profile that it was packed by. Such a root has no more
	// than ID, List and this.
	Profile uint32 `json:"profile,omitempty"`
}

// Pushed says what a push did.
type Pushed struct {
	Already bool  `json:"already"` // the bucket had it
	Packs   int   `json:"packs"`   // new pack objects
	Bytes   int64 `json:"bytes"`   // that were uploaded, the list included
	Known   int   `json:"known"`   // packs of other checkpoints that it refers to
}

// Push takes a sealed checkpoint of a node to the bucket, under the name that it has there. When it returns nil the
// checkpoint stands in the bucket, and so do those that it needs. Class Exists when another checkpoint has that name,
// InUse while somebody pushes one, and where its parent was removed meanwhile. One push of this Store runs at a time.
func (s *Store) Push(ctx context.Context, n Node, ref string) (Pushed, error) {
	return s.PushTelling(ctx, n, ref, func(int64, int64) {})
}

// PushTelling is Push. It tells how much of the checkpoint's content it has dealt with, in bytes, zeros left out, again
// and again, in one goroutine.
func (s *Store) PushTelling(ctx context.Context, n Node, ref string, tell func(done, total int64)) (Pushed, error) {
	select {
	case s.pushing <- struct{}{}:
		defer func() { <-s.pushing }()
	case <-ctx.Done():
		return Pushed{}, named("push", ref, ctx.Err())
	}
	return s.push(ctx, n, ref, tell)
}

// Learn tells a node what other machines have taken to the bucket, so that a push sends none of it again. It reads each
// root that has changed since it looked last, and the list of those with packs of which the node knows nothing.
func (s *Store) Learn(ctx context.Context, n Node) error {
	const op = "learn of the remote store"
	s.learning.Lock()
	defer s.learning.Unlock()
	defer n.KeepLearned()
	unknown, fresh := map[object.Name]bool{}, map[string]string{}
	same := func(key, etag string) bool {
		fresh[key] = etag
		return s.learned[key] == etag
	}
	for r, err := range s.c.Unlike(ctx, same) {
		if errors.Is(err, catalog.ErrCorrupt) || errors.Is(err, catalog.ErrVersion) {
			continue // List tells of it
		}
		if err != nil {
			return Classify(op, err)
		}
		if r.State != catalog.Sealed || catalog.IsBeside(r.Name) || len(r.Packs) < 2 ||
			!isNews(n.Knows, r.Packs[:len(r.Packs)-1], unknown) {
			continue
		}
		err := s.withList(ctx, r.Name, func(list object.Source) error { return n.Learn(ctx, s.id, list) })
		if class := fault.ClassOf(err); class == fault.NotFound {
			continue // removed meanwhile
		} else if class == fault.Corrupt || class == fault.Unsupported {
			s.o.Logger.Error("the list of a checkpoint cannot be read, and what it shares is sent again", "checkpoint",
				r.Name, "err", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	s.learned = fresh
	return nil
}

// isNews says whether a node, whose Knows this is, knows nothing of one of the packs, and adds those to unknown. Of
// these each list counts: one alone may tell of a part of a pack.
func isNews(knows func(object.Name) bool, packs []catalog.Pack, unknown map[object.Name]bool) (news bool) {
	for _, p := range packs {
		if name, err := object.ParseName(p.ID); err == nil && (unknown[name] || !knows(name)) {
			unknown[name], news = true, true
		}
	}
	return news
}

// withList calls take with the list of what has a root.
func (s *Store) withList(ctx context.Context, name string, take func(list object.Source) error) error {
	return Classify("learn", foundAnew(func() error {
		k, err := s.c.Find(ctx, name)
		if err != nil {
			return err
		}
		e, err := s.entryOf(k.Record)
		if err != nil {
			return err
		}
		list, err := listOf(ctx, k, e)
		if err != nil {
			return err
		}
		return take(list)
	}))
}

// begin takes a name for a push. What is left of a push of this machine that did not end is abandoned first. The nonce
// is noted before the bucket hears of it: a request that gets no answer may have taken the name, or take it later.
func (s *Store) begin(ctx context.Context, name string) (*catalog.Draft, error) {
	left, err := s.o.Pushes.Left(name)
	if err != nil {
		return nil, err
	}
	if left != "" {
		if err := s.c.Abandon(ctx, name, left); err != nil && !errors.Is(err, catalog.ErrNotFound) {
			return nil, err
		}
	}
	nonce := s.c.NewNonce()
	if err := s.o.Pushes.Begun(name, nonce); err != nil {
		return nil, err
	}
	d, err := s.c.BeginAs(ctx, name, nonce)
	if left != "" && errors.Is(err, catalog.ErrInUse) && s.c.Abandon(ctx, name, left) == nil { // it came late
		d, err = s.c.BeginAs(ctx, name, nonce)
	}
	if errors.Is(err, catalog.ErrExists) || errors.Is(err, catalog.ErrInUse) {
		s.o.Pushes.Ended(name)
	}
	return d, err
}

func (s *Store) push(ctx context.Context, n Node, ref string, tell func(done, total int64)) (Pushed, error) {
	info, err := n.Info(ref)
	if err != nil {
		return Pushed{}, err
	}
	fail := func(err error) (Pushed, error) { return Pushed{}, named("push", info.Name, err) }
	parent := ""
	if info.Parent != "" {
		up, err := s.push(ctx, n, info.Parent, tell)
		if err != nil {
			return up, err
		}
		of, err := n.Info(info.Parent)
		if err != nil {
			return Pushed{}, err
		}
		parent = of.ID
	}
	p, err := s.takeName(ctx, n, info)
	if errors.Is(err, catalog.ErrExists) {
		if e, ferr := s.Find(ctx, info.Name); ferr == nil && e.ID == info.ID {
			return Pushed{Already: true}, s.parentStands(ctx, e)
		}
	}
	if err != nil {
		return fail(err)
	}
	defer s.releaseName()
	defer p.end()
	p.info, p.parent = info, parent
	done := int64(0)
	p.u.Looked = func(bytes int64) {
		done += bytes
		tell(done, info.Logical-info.Zero)
	}
	out, err := p.run(ctx)
	if err != nil {
		p.abort(ctx)
		return fail(err)
	}
	s.o.Pushes.Ended(info.Name)
	// Its parent may have been removed before others could see that it is needed.
	return out, s.parentStands(ctx, Entry{Name: info.Name, Meta: Meta{Parent: info.Parent, ParentID: parent}})
}

// takeName gives the push that was begun early, or begins one. No early one of that name begins until releaseName.
func (s *Store) takeName(ctx context.Context, n Node, info roots.Info) (*push, error) {
	select {
	case s.naming <- struct{}{}:
		defer func() { <-s.naming }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p := s.takeEarly(ctx, info.ID, info.Name)
	if p == nil {
		d, err := s.begin(ctx, info.Name)
		if err != nil {
			return nil, err
		}
		p = s.newPush(ctx, n, d, info.Name)
	}
	s.earlyMu.Lock()
	s.pushed = info.Name
	s.earlyMu.Unlock()
	return p, nil
}

func (s *Store) releaseName() {
	s.earlyMu.Lock()
	s.pushed = ""
	s.earlyMu.Unlock()
}

// push is one checkpoint on its way.
type push struct {
	s    *Store
	n    Node
	d    *catalog.Draft
	name string
	u    *upload.Uploader
	job  *upload.Upload
	info roots.Info

	parent string // id

	ctx    context.Context // of what is uploaded; it ends when the draft is over
	cancel context.CancelCauseFunc
	stop   func() // waits for what touches the draft
}

// newPush begins to upload for a draft, and touches that until end is called.
func (s *Store) newPush(ctx context.Context, n Node, d *catalog.Draft, name string) *push {
	p := &push{s: s, n: n, d: d, name: name, u: n.Uploader(s.id)}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	p.job = p.u.Begin(p.ctx, p)
	p.stop = touching(p.ctx, d, touchEvery, p.cancel)
	return p
}

// touching touches a draft until ctx ends, and gives what waits for that. When the draft is over, as after any touch
// that fails, it says so to over: what is uploaded for it could not be sealed.
func touching(ctx context.Context, d *catalog.Draft, every time.Duration, over context.CancelCauseFunc) (stop func()) {
	var one sync.WaitGroup
	one.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				if err := d.Touch(ctx); err != nil {
					over(err)
					return
				}
			}
		}
	})
	return one.Wait
}

func (p *push) end() {
	p.cancel(nil)
	p.stop()
}

// abort gives the name free, even where the push was cancelled.
func (p *push) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	if p.d.Abort(ctx) == nil { // else the next push does it, or a collector
		p.s.o.Pushes.Ended(p.name)
	}
}

func (p *push) run(ctx context.Context) (Pushed, error) {
	stands, err := p.claim(ctx)
	if err != nil {
		return Pushed{}, err
	}
	res, err := p.upload(ctx, stands)
	if err != nil {
		return Pushed{}, err
	}
	out, err := p.seal(ctx, res, Meta{ID: p.info.ID, Sealed: p.info.SealedAt, Logical: p.info.Logical,
		Zero: p.info.Zero, Files: p.info.Files, Labels: p.info.Labels, Parent: p.info.Parent, ParentID: p.parent})
	if err != nil {
		return Pushed{}, err
	}
	return out, p.u.Durable(res)
}

// seal puts the list of what was uploaded, and seals the draft, unless the checkpoint is not here any more: NotFound.
func (p *push) seal(ctx context.Context, res *upload.Result, m Meta) (Pushed, error) {
	list, err := p.d.Add(ctx, bytes.NewReader(res.List), int64(len(res.List)))
	if err != nil {
		return Pushed{}, err
	}
	if _, err := p.n.Info(m.ID); fault.ClassOf(err) == fault.NotFound {
		return Pushed{}, fmt.Errorf("it was removed here while it was uploaded, and is not taken there: %w", err)
	}
	m.List = list.ID
	var packs []catalog.Pack
	for _, ref := range res.Known {
		packs = append(packs, packOf(ref))
	}
	for _, ref := range res.New {
		packs = append(packs, packOf(ref))
	}
	meta, err := json.Marshal(m)
	if err != nil {
		return Pushed{}, err
	}
	if c := p.s.o.Cipher; c != nil {
		meta = c.Seal(rootPurpose(p.name), meta)
	}
	if err := p.d.Seal(ctx, append(packs, list), meta); err != nil {
		return Pushed{}, err
	}
	out := Pushed{Packs: len(res.New), Known: len(res.Known), Bytes: list.Size}
	for _, ref := range res.New {
		out.Bytes += ref.Size
	}
	return out, nil
}

func packOf(p object.PackRef) catalog.Pack { return catalog.Pack{ID: p.Name.String(), Size: p.Size} }

// claimRounds is how often other places are looked for in place of packs that are lost.
const claimRounds = 3

// claim claims the packs in which chunks of the checkpoint are known to be, and gives those that may be referred to. In
// place of those that are lost it looks for others that have the same chunks, as where they were repacked.
func (p *push) claim(ctx context.Context) (map[object.Name]bool, error) {
	stands, gone := map[object.Name]bool{}, map[object.Name]bool{}
	for range claimRounds {
		known, err := p.u.Known(ctx, p.info.ID, func(n object.Name) bool { return !gone[n] })
		if err != nil {
			return nil, err
		}
		packs := make([]catalog.Pack, len(known))
		for i, ref := range known {
			packs[i] = packOf(ref)
			stands[ref.Name] = true
		}
		lost, err := p.d.Claim(ctx, packs)
		if err != nil {
			return nil, err
		}
		for _, l := range lost {
			name, err := object.ParseName(l.ID)
			if err != nil {
				return nil, err
			}
			delete(stands, name)
			gone[name] = true
		}
		if len(lost) == 0 {
			break
		}
	}
	return stands, nil
}

// upload uploads what the bucket lacks.
func (p *push) upload(ctx context.Context, stands map[object.Name]bool) (*upload.Result, error) {
	res, err := p.job.End(ctx, p.info.ID, func(n object.Name) bool { return stands[n] })
	return p.uploaded(res, err)
}

// uploaded ends what was uploaded for a draft, and names the reason where somebody else has taken that.
func (p *push) uploaded(res *upload.Result, err error) (*upload.Result, error) {
	if cause := context.Cause(p.ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	p.end()
	return res, err
}

// AddPack is of upload.Sink.
func (p *push) AddPack(ctx context.Context, b []byte) (object.Name, error) {
	pack, err := p.d.Add(ctx, bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return object.Name{}, err
	}
	return object.ParseName(pack.ID)
}

// Stands looks whether there is a checkpoint to Remove. Class NotFound.
func (s *Store) Stands(ctx context.Context, name string) error {
	if _, err := s.find(ctx, name); !errors.Is(err, catalog.ErrCorrupt) {
		return Classify("look in the remote store", err)
	}
	return nil
}

// Remove removes a checkpoint from the remote store. Its packs stay until they are collected. Class NotFound.
func (s *Store) Remove(ctx context.Context, name string) error {
	const op = "remove from the remote store"
	if catalog.IsBeside(name) {
		return Classify(op, fmt.Errorf("%s: %w", name, catalog.ErrNotFound))
	}
	return Classify(op, s.c.Remove(ctx, name))
}

// Collector gives who deletes what no checkpoint of the remote store needs. One that runs again and again knows what
// has been left behind; one that runs once leaves it.
func (s *Store) Collector(p catalog.Patience) *catalog.Collector { return s.c.Collector(p) }
