package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// Draft is a checkpoint that is being written. Its methods may be called at once.
type Draft struct {
	c           *Catalog
	name, nonce string
	next        counter
	own         packSet // written by Add

	mu   sync.Mutex // held over each change of the root, and over the whole of a claim
	root root
	held packSet // claimed, and found to be safe
	over error   // set when no change of the root is possible any more
}

func (c *Catalog) draft(r root) *Draft { return &Draft{c: c, name: r.Name, nonce: r.Nonce, root: r} }

var errOver = fmt.Errorf("%w: the draft is over", ErrInvalid)

// Begin takes a name for a new checkpoint. The error is ErrExists or ErrInUse when the name is taken. After
// bucket.Transient the name may be taken by this draft: a collector gives it free, or Abandon.
func (c *Catalog) Begin(ctx context.Context, name string) (*Draft, error) {
	return c.BeginAs(ctx, name, c.NewNonce())
}

// NewNonce gives a nonce for BeginAs, 32 hex digits.
func (c *Catalog) NewNonce() string { return c.o.Nonce() }

// BeginAs is Begin with a nonce from NewNonce, which the caller can note before: when no answer comes, the name may be
// taken all the same, and Abandon needs the nonce. After ErrExists and ErrInUse the nonce may be used again.
func (c *Catalog) BeginAs(ctx context.Context, name, nonce string) (*Draft, error) {
	r := Record{State: Pending, Name: name, Nonce: nonce}
	cond := bucket.IfAbsent
	for {
		made, err := c.write(ctx, r, cond)
		if err == nil {
			return c.draft(made), nil
		}
		if bucket.ClassOf(err) != bucket.Precondition {
			return nil, fmt.Errorf("begin %s: %w", name, err)
		}
		now, err := c.lookup(ctx, name)
		switch {
		case errors.Is(err, ErrNotFound) && now.etag == "":
			cond = bucket.IfAbsent
		case errors.Is(err, ErrNotFound):
			cond = bucket.IfMatch(now.etag)
		case err != nil:
			return nil, fmt.Errorf("begin %s: %w", name, err)
		case now.State == Sealed:
			return nil, fmt.Errorf("begin %s: %w", name, ErrExists)
		default:
			return nil, fmt.Errorf("begin %s: %w", name, ErrInUse)
		}
	}
}

// Nonce identifies the draft: for Abandon, by the one who begins anew after a crash.
func (d *Draft) Nonce() string { return d.nonce }

// Abandon gives free the name of a draft whose writer is known to be gone. The error is ErrNotFound when there is no
// such draft.
func (c *Catalog) Abandon(ctx context.Context, name, nonce string) error {
	r, err := c.lookup(ctx, name)
	if err != nil {
		return fmt.Errorf("abandon: %w", err)
	}
	if r.State != Pending || r.Nonce != nonce {
		return fmt.Errorf("abandon %s: %w", name, ErrNotFound)
	}
	return c.draft(r).Abort(ctx)
}

// change writes the draft's root anew. The error is ErrTaken when somebody else has changed it. After any error but
// ErrInvalid the draft is over: it may not know what its root holds. d.mu is held.
func (d *Draft) change(ctx context.Context, r Record) error {
	if d.over != nil {
		return fmt.Errorf("%s: %w", r.Name, d.over)
	}
	cond := bucket.IfMatch(d.root.etag)
	if d.c.omit.condition {
		cond = bucket.Cond{}
	}
	made, err := d.c.write(ctx, r, cond)
	if bucket.ClassOf(err) == bucket.Precondition {
		err = ErrTaken
	}
	if err != nil && !errors.Is(err, ErrInvalid) {
		d.over = err
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	if d.root = made; made.State != Pending {
		d.over = errOver
	}
	return nil
}

// pending gives the draft's record with further claims.
func (d *Draft) pending(claims []Pack) Record {
	return Record{State: Pending, Name: d.name, Nonce: d.nonce, Packs: append(d.held.list(), claims...)}
}

// Touch shows collectors that the draft's writer is there.
func (d *Draft) Touch(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.change(ctx, d.pending(nil))
}

// Claim asks for packs that stand already, so that Seal may list them. It gives those that are lost: they are missing,
// or about to be deleted. What they hold is to be written anew with Add.
func (d *Draft) Claim(ctx context.Context, packs []Pack) (lost []Pack, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	packs = slices.DeleteFunc(slices.Clone(packs), func(p Pack) bool { return d.held.has(p) || d.own.has(p) })
	if len(packs) == 0 {
		return nil, nil
	}
	if err := d.change(ctx, d.pending(packs)); err != nil {
		return nil, err
	}
	lost, err = d.c.lost(ctx, packs)
	if err != nil {
		return nil, err
	}
	for _, p := range packs {
		if !slices.Contains(lost, p) {
			d.held.add(p)
		}
	}
	return lost, nil
}

// lost gives those of the packs, which a root has just come to list, that are missing or about to be deleted.
func (c *Catalog) lost(ctx context.Context, packs []Pack) (lost []Pack, err error) {
	// The order matters: published, then tombstones, then packs (see the package comment).
	var standing map[Pack]bool
	if c.omit.order {
		if standing, err = c.standing(ctx, packs); err != nil {
			return nil, err
		}
	}
	tombed := map[string]bool{}
	if !c.omit.tombstones {
		for info, err := range bucket.All(ctx, c.b, tombDir) {
			if err != nil {
				return nil, err
			}
			tombed[tombPack(info.Key)] = true
		}
	}
	if !c.omit.order {
		if standing, err = c.standing(ctx, packs); err != nil {
			return nil, err
		}
	}
	for _, p := range packs {
		if tombed[p.ID] || !standing[p] {
			lost = append(lost, p)
		}
	}
	return lost, nil
}

// standing gives those of the packs that exist with the length they should have. It lists the packs of each draft that
// wrote one of them.
func (c *Catalog) standing(ctx context.Context, packs []Pack) (map[Pack]bool, error) {
	found := map[Pack]bool{}
	listed := map[string]bool{}
	for _, p := range packs {
		if listed[p.draft()] {
			continue
		}
		listed[p.draft()] = true
		for info, err := range bucket.All(ctx, c.b, packDir+p.draft()+"-") {
			if err != nil {
				return nil, err
			}
			found[Pack{strings.TrimPrefix(info.Key, packDir), info.Size}] = true
		}
	}
	return found, nil
}

// Add writes a new pack of size bytes.
func (d *Draft) Add(ctx context.Context, content io.ReaderAt, size int64) (Pack, error) {
	for n := 1; ; n++ {
		p := Pack{d.nonce + "-" + strconv.FormatUint(uint64(d.next.take()), 10), size}
		_, err := d.c.b.Put(ctx, PackKey(p.ID), content, size, bucket.IfAbsent)
		if err == nil {
			d.own.add(p)
			return p, nil
		}
		// Without an answer the name is given up: the PUT may happen at any time, and the pack be deleted meanwhile.
		if bucket.ClassOf(err) != bucket.Transient || n >= d.c.o.Attempts {
			return Pack{}, err
		}
		if err := d.c.o.Wait(ctx, n); err != nil {
			return Pack{}, err
		}
	}
}

// Seal makes the draft a checkpoint of these packs, each added or claimed. When it gives nil, the checkpoint stands.
// When the error is ErrTaken, it does not. After bucket.Transient it may stand, now or later: Find tells, by the Nonce.
func (d *Draft) Seal(ctx context.Context, packs []Pack, meta []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range packs {
		if !d.own.has(p) && !d.held.has(p) {
			return fmt.Errorf("seal %s: %w: pack %s is neither added nor claimed", d.name, ErrInvalid, p.ID)
		}
	}
	r := Record{State: Sealed, Name: d.name, Nonce: d.nonce, Packs: packs, Meta: meta}
	err := d.change(ctx, r)
	if errors.Is(err, ErrTaken) { // or sealed without an answer, and given other packs since
		now, lerr := d.c.lookup(ctx, d.name)
		switch {
		case lerr == nil && now.State == Sealed && now.Nonce == d.nonce:
			err = nil
		case lerr != nil && !errors.Is(lerr, ErrNotFound):
			err = lerr
		}
	}
	if err != nil {
		return fmt.Errorf("seal %w", err)
	}
	return nil
}

// Abort gives the name free. What was added is left to collectors.
func (d *Draft) Abort(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.change(ctx, Record{State: Void, Name: d.name, Nonce: d.nonce}); err != nil {
		return fmt.Errorf("abort %w", err)
	}
	return nil
}
