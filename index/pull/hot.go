package pull

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// PullHot gives a sealed checkpoint of the store the hot set that the bucket with this identity has of it. list is the
// hot set's list object, which has its record and the places of its pieces. Class NotFound when the store has no such
// checkpoint, Corrupt when the list does not tell all that is needed.
func (p *Puller) PullHot(ctx context.Context, id string, bucket [16]byte, list object.Source) error {
	const op = "pull hot set"
	corrupt := func(err error) error {
		return &fault.Error{Class: fault.Corrupt, Op: op, Checkpoint: id, Err: err}
	}
	if _, _, err := p.roots.Sealed(op, id); err != nil {
		return err
	}
	var record []byte
	l := learner{ctx: ctx, note: p.note}
	err := object.Decode(list, bucket, object.Visitor{Pack: l.pack, Chunk: l.chunk, Coder: p.chunks.Packs.Coder(),
		Record: func(kv pack.KV) error {
			if kv.Key != manifest.HotKey(id) || record != nil {
				return corrupt(fmt.Errorf("an unexpected record %.60q", kv.Key))
			}
			record = append([]byte(nil), kv.Value...)
			return nil
		}})
	if err == nil && record == nil {
		err = corrupt(errors.New("a list without a hot set"))
	}
	if err == nil {
		err = l.learn()
	}
	if err != nil {
		return fault.Classify(op, err)
	}
	_, ids, err := manifest.DecodeHot(record)
	if err != nil {
		return corrupt(err)
	}
	for _, piece := range ids {
		if _, err := p.chunks.Locate(piece); err != nil {
			return corrupt(err)
		}
	}
	return p.roots.SetHotPieces(id, record)
}
