package repack

import (
	"bytes"
	"context"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// change gives a checkpoint a list that names the new places of what was copied, and the packs that it needs then.
func (r *run) change(ctx context.Context, d *catalog.Draft, k *rooted) error {
	now, err := r.find(ctx, k)
	if err != nil {
		return err
	}
	list, needed, err := r.rewritten(ctx, now, k)
	if err != nil {
		return err
	}
	b, err := list.Encode(r.o.Store)
	if err != nil {
		return err
	}
	p, err := d.Add(ctx, bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return err
	}
	r.report.Written += p.Size
	meta, err := r.o.Relisted(now.Record, p.ID)
	if err != nil {
		return err
	}
	packs := make([]catalog.Pack, 0, len(list.Packs)+1)
	for _, ref := range list.Packs {
		packs = append(packs, catalog.Pack{ID: ref.Name.String(), Size: ref.Size})
	}
	return now.Exchange(ctx, func(p catalog.Pack) bool { return needed[p.ID] }, append(packs, p), meta)
}

// rewritten gives the list of a checkpoint with the new places, and the packs that the old one needs.
func (r *run) rewritten(ctx context.Context, now *catalog.Checkpoint, k *rooted) (
	list object.List, needed map[string]bool, err error,
) {
	var packs []object.PackRef
	needed = map[string]bool{k.list.ID: true}
	old := object.List{}
	err = object.Decode(r.listOf(ctx, now, k), r.o.Store, object.Visitor{
		Coder: r.o.Coder,
		Pack: func(_ uint32, p object.PackRef) error {
			packs = append(packs, p)
			needed[p.Name.String()] = true
			return ctx.Err()
		},
		Chunk: func(c pack.Chunk) error { old.Chunks = append(old.Chunks, c); return nil },
		Record: func(kv pack.KV) error {
			old.Records = append(old.Records, pack.KV{Key: kv.Key, Value: bytes.Clone(kv.Value)})
			return nil
		},
	})
	if err != nil {
		return list, nil, err
	}
	list = object.List{Records: old.Records, Coder: r.o.Coder}
	placed := map[chunk.ID]bool{} // of those that were copied
	numbers := map[object.Name]uint32{}
	number := func(p object.PackRef) uint32 {
		n, ok := numbers[p.Name]
		if !ok {
			list.Packs = append(list.Packs, p)
			n = uint32(len(list.Packs))
			numbers[p.Name] = n
		}
		return n
	}
	for _, c := range old.Chunks {
		from := packs[c.Loc.Pack-1]
		if s := r.suspect[from.Name.String()]; s == nil || !s.chosen || s.stays {
			c.Loc.Pack = number(from)
			list.Chunks = append(list.Chunks, c)
			continue
		}
		to, moved := r.moved[c.ID]
		if !moved || to.loc.Raw != c.Loc.Raw {
			return list, nil, fmt.Errorf("%w: pack %s does not hold chunk %.12s, as the list says", object.ErrCorrupt,
				from.Name, c.ID)
		}
		if placed[c.ID] {
			continue
		}
		placed[c.ID], c.Loc = true, to.loc
		c.Loc.Pack = number(r.refs[to.pack])
		list.Chunks = append(list.Chunks, c)
	}
	return list, needed, nil
}
