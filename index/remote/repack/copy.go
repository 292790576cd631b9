package repack

import (
	"bytes"
	"context"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

const (
	// gapBytes is how much that is not in use is read along rather than asking twice.
	gapBytes = 256 << 10
	// mostRead bounds one request, in bytes. A single slot may be longer.
	mostRead = 16 << 20
)

// copy writes what is in use of packs into new ones. A pack that is damaged stays: what the checkpoints that need it
// have of it is for verify to tell, and a copy would hide it.
func (r *run) copy(ctx context.Context, d *catalog.Draft, chosen []*suspect) error {
	to := &object.Packer{Coder: r.o.Coder}
	var waiting []pack.Chunk // in to
	put := func() error {
		if to.Len() == 0 {
			return nil
		}
		b, err := to.Finish(r.o.Store)
		if err != nil {
			return err
		}
		p, err := d.Add(ctx, bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return err
		}
		name, err := object.ParseName(p.ID)
		if err != nil {
			return err
		}
		for _, c := range waiting {
			r.moved[c.ID] = place{len(r.refs), c.Loc}
		}
		r.refs = append(r.refs, object.PackRef{Name: name, Size: p.Size})
		r.report.Written, r.kept = r.report.Written+p.Size, r.kept+p.Size
		waiting = waiting[:0]
		to.Reset()
		return nil
	}
	for _, s := range chosen {
		slots, err := r.slots(ctx, s)
		if err != nil && !passes(err) {
			return err
		}
		if err != nil {
			r.o.Logger.Error("a pack of the remote store is not repacked: see gpucr-fs verify --remote", "pack", s.ID,
				"err", err)
			s.stays = true
			continue
		}
		for _, x := range slots {
			if _, ok := r.moved[x.ID]; ok {
				continue
			}
			loc, full := to.Add(x.ID, x.Loc, x.slot)
			if full {
				if err := put(); err != nil {
					return err
				}
				loc, _ = to.Add(x.ID, x.Loc, x.slot)
			}
			waiting = append(waiting, pack.Chunk{ID: x.ID, Loc: loc})
			r.moved[x.ID] = place{-1, loc} // on its way
		}
	}
	return put()
}

// slot is a chunk's slot, decrypted.
type slot struct {
	pack.Chunk
	slot []byte
}

// slots reads what is in use of a pack, and holds it against the ids of the chunks.
func (r *run) slots(ctx context.Context, s *suspect) ([]slot, error) {
	var k *catalog.Checkpoint
	err := fmt.Errorf("pack %s: %w: no checkpoint needs it", s.ID, catalog.ErrNotFound)
	for _, root := range s.roots {
		if k, err = r.find(ctx, root); err == nil || !passes(err) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	in := &reader{ctx: ctx, k: k, p: s.Pack, read: &r.report.Read}
	var wanted []pack.Chunk
	var bytes int64
	err = object.ReadPack(in, s.Size, r.o.Store, r.o.Coder, func(c pack.Chunk) error {
		if s.used.has(c.Loc.Page) {
			wanted, bytes = append(wanted, c), bytes+c.Loc.Slot()
		}
		return nil
	})
	if err == nil && bytes != s.alive {
		err = fmt.Errorf("pack %s: %w: it tells of %d bytes where lists tell of %d", s.ID, object.ErrCorrupt, bytes,
			s.alive)
	}
	if err != nil {
		return nil, err
	}
	out := make([]slot, 0, len(wanted))
	for len(wanted) > 0 {
		first, n := wanted[0].Loc.Offset(), 1
		end := first + wanted[0].Loc.Slot()
		for ; n < len(wanted); n++ {
			l := wanted[n].Loc
			if l.Offset()-end > gapBytes || l.Offset()+l.Slot()-first > mostRead {
				break
			}
			end = l.Offset() + l.Slot()
		}
		b := make([]byte, end-first)
		if got, err := in.ReadAt(b, first); got < len(b) {
			return nil, fmt.Errorf("pack %s: %w: cut short: %w", s.ID, object.ErrCorrupt, err)
		} else if err != nil {
			return nil, err
		}
		for _, c := range wanted[:n] {
			own := b[c.Loc.Offset()-first:][:c.Loc.Slot()]
			if err := r.o.Holds(c, own); err != nil {
				return nil, fmt.Errorf("pack %s, chunk %.12s: %w", s.ID, c.ID, err)
			}
			if r.o.Coder != nil {
				if err := pack.Decrypt(r.o.Coder, c.Loc, own); err != nil {
					return nil, err
				}
			}
			out = append(out, slot{c, own})
		}
		wanted = wanted[n:]
	}
	return out, nil
}
