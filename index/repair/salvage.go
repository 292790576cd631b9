package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// suspect is a pack whose journal cannot be believed to tell all, and what else tells of it.
type suspect struct {
	orphan  bool // there is no journal
	damaged bool // the journal has lost something; else there are only others that were put aside
	told    bool // the old index had read all that is lost
	aside   []string
	dead    map[uint32]bool       // pages of slots that a journal calls dead
	chunks  map[uint32]pack.Chunk // candidates by page
	sure    map[uint32]bool       // pages of those that the old index knows
	kvs     map[string]pack.KV
}

func newSuspect() *suspect {
	return &suspect{dead: map[uint32]bool{}, chunks: map[uint32]pack.Chunk{}, sure: map[uint32]bool{},
		kvs: map[string]pack.KV{}}
}

func (p *suspect) put(kv pack.KV) {
	if old, ok := p.kvs[kv.Key]; !ok || old.Seq < kv.Seq {
		kv.Value = slices.Clone(kv.Value)
		p.kvs[kv.Key] = kv
	}
}

// add takes a record of a journal of the pack.
func (p *suspect) add(rec pack.Record) error {
	switch {
	case rec.Chunk != nil:
		if _, known := p.chunks[rec.Chunk.Loc.Page]; !known {
			p.chunks[rec.Chunk.Loc.Page] = *rec.Chunk
		}
	case rec.Dead != nil:
		p.dead[rec.Dead.Loc.Page] = true
	case rec.KV != nil:
		p.put(*rec.KV)
	}
	return nil
}

// salvage gathers what old index, journals and journals put aside tell of the suspects, and writes their journals
// anew. Metadata that the old index has and no journal go into the journal of a new pack.
func (r *rebuild) salvage(ctx context.Context) error {
	lost, err := r.readOld(ctx)
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	if keys.Lacks(err) {
		return err
	}
	if err != nil {
		r.o.Logger.Warn("the old index cannot help", "err", err)
		r.knows = false
	}
	for _, n := range slices.Sorted(maps.Keys(r.suspect)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.salvagePack(n, r.suspect[n]); err != nil {
			return fmt.Errorf("journal %s: %w", pack.JournalName(n), err)
		}
	}
	if err := r.s.RecordDamage(); err != nil || len(lost) == 0 {
		return err
	}
	r.o.Logger.Info("the old index has metadata that no journal has", "keys", len(lost))
	return r.s.CommitKVs(lost)
}

// readOld takes from the old index the chunks of the suspects, and gives the metadata that no journal has as late.
func (r *rebuild) readOld(ctx context.Context) (lost []pack.KV, err error) {
	if r.was == nil {
		return nil, nil
	}
	if len(r.suspect) > 0 {
		err = r.was.Chunks(func(id chunk.ID, loc pack.Loc, err error) error {
			p := r.suspect[loc.Pack]
			switch {
			case err != nil:
				r.knows = false // a damaged record tells nothing
			case p != nil:
				p.chunks[loc.Page] = pack.Chunk{ID: id, Loc: loc}
				p.sure[loc.Page] = true
			}
			return ctx.Err()
		})
		if err != nil {
			return nil, err
		}
	}
	err = r.was.Metas("", func(key string, seq uint64, payload []byte, err error) error {
		switch {
		case err != nil:
			r.knows = false
		case seq > r.keys[key]: // else it is of a draft, or known from a journal
			lost = append(lost, pack.KV{Seq: seq, Key: key, Value: slices.Clone(payload), Delete: len(payload) == 0})
		}
		return ctx.Err()
	})
	if err == nil && len(r.suspect) > 0 {
		// What could not be read was not among what came, and that was no error.
		if werr := r.was.Whole(); keys.Lacks(werr) {
			err = werr
		} else if werr != nil {
			r.o.Logger.Warn("the old index does not tell all that it held", "err", werr)
			r.knows = false
		}
	}
	return lost, err
}

// salvagePack enters what is known of one suspect into the new index and into a new journal. Where the old index
// had read all that is lost, and still tells it, nothing is lost. Else the damaged journal is put aside, and gc
// keeps what it may have told of.
//
// A chunk that the old index does not know may have been given back, and the record of that lost: it counts only if
// its guard says that it is still there.
func (r *rebuild) salvagePack(n uint32, p *suspect) error {
	s := r.s
	told := p.told && r.knows
	if p.orphan && !told && len(p.aside) == 0 {
		r.res.Lost = append(r.res.Lost,
			fmt.Sprintf("pack %s: its journal is gone, and no index tells all that it holds", pack.Name(n)))
		b := s.DB.Batch()
		for _, c := range p.chunks {
			b.SetChunk(c)
		}
		return b.Flush()
	}
	if !p.orphan {
		if _, _, err := s.Packs.Read(n, 0, p.add); err != nil {
			return err
		}
	}
	var whole []string // journals put aside that have no damage any more
	for _, name := range p.aside {
		bad, err := s.Packs.ReadAside(n, name, p.add)
		if err != nil {
			return err
		}
		if len(bad) == 0 {
			whole = append(whole, name)
		}
	}
	chunks, err := r.believed(p)
	if err != nil {
		return err
	}
	kvs := slices.SortedFunc(maps.Values(p.kvs),
		func(a, b pack.KV) int { return int(min(1, max(-1, int64(a.Seq-b.Seq)))) })
	if p.damaged && !told {
		r.o.Logger.Warn("putting a damaged journal aside", "journal", pack.JournalName(n))
		if err := s.Packs.PutAside(n); err != nil {
			return err
		}
	}
	mark, err := s.Packs.RewriteJournal(n, chunks, kvs)
	if err != nil {
		return err
	}
	b := s.DB.Batch()
	for _, c := range chunks {
		if !s.KnowsLater(c) {
			b.SetChunk(c)
		}
	}
	for _, kv := range kvs {
		if err := s.Apply(b, pack.Record{KV: &kv}); err != nil {
			return errors.Join(err, b.Flush())
		}
	}
	b.SetMark(n, mark)
	if err := b.Flush(); err != nil {
		return err
	}
	for _, name := range whole {
		if err := s.Packs.RemoveAside(name); err != nil {
			return err
		}
	}
	r.o.Logger.Info("wrote a journal anew", "journal", pack.JournalName(n), "chunks", len(chunks), "keys", len(kvs))
	return nil
}

// believed gives the chunks of a suspect that are there, by their place. A chunk is not there only if its slot was read
// and is wrong. A lack of descriptors or memory ends the repair. What the disk cannot read stays listed, and known as
// damaged: its content is stored anew when it comes by.
func (r *rebuild) believed(p *suspect) ([]pack.Chunk, error) {
	s := r.s
	var out []pack.Chunk
	for _, page := range slices.Sorted(maps.Keys(p.chunks)) {
		c := p.chunks[page]
		if p.dead[page] {
			continue
		}
		if !p.sure[page] {
			if c.Loc.Slot() > int64(chunk.MaxEncoded(r.o.Chunks.MaxChunk))+chunk.PageSize {
				continue
			}
			buf, err := s.Arena.Get(int(c.Loc.Slot()))
			if err != nil {
				return nil, err
			}
			errs := s.Packs.ReadSlots([]pack.Loc{c.Loc}, [][]byte{buf}, true)
			s.Arena.Put(buf)
			var disk unix.Errno
			switch err := errs[0]; {
			case keys.Lacks(err):
				return nil, err
			case errors.As(err, &disk):
				r.o.Logger.Warn("a chunk of a damaged journal cannot be read", "chunk", c.ID.String(), "err", err)
				s.SetDamaged(c.ID, c.Loc)
			case err != nil:
				r.o.Logger.Warn("a chunk of a damaged journal is not there", "chunk", c.ID.String(), "err", err)
				continue
			}
		}
		out = append(out, c)
	}
	return out, nil
}
