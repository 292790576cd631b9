package upload

import (
	"context"
	"errors"
	"io"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// learnt puts what was learnt when the checkpoint was restored: its profile into the list, its hot set into packs of
// its own, so that it is read as one stream.
func (j *Upload) learnt(ctx context.Context, id string) error {
	profile, err := j.u.roots.Profile(id)
	if fault.ClassOf(err) == fault.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	j.list.Records = append(j.list.Records, pack.KV{Key: manifest.ProfileKey(id), Value: profile})
	if err := j.hotSet(ctx, id, func(int64) {}); fault.ClassOf(err) != fault.NotFound {
		return err
	}
	return nil
}

// EndHot ends an upload with the hot set of a sealed checkpoint alone: its list has no other record, and no other
// chunks. tell is told of each piece that it has dealt with, by its bytes. Class NotFound when the store has packed
// none.
func (j *Upload) EndHot(id string, tell func(bytes int64)) (*Result, error) {
	j.stands = func(object.Name) bool { return false }
	return j.finish(j.hotSet(j.putting, id, tell))
}

// hotSet puts the hot set of a checkpoint. Class NotFound when there is none.
func (j *Upload) hotSet(ctx context.Context, id string, tell func(bytes int64)) error {
	f, err := j.u.roots.HotSet(id)
	if err != nil {
		return err
	}
	defer f.Close()
	j.put(ctx)
	var ids []chunk.ID
	var size int64
	all := io.NewSectionReader(f, 0, f.Size())
	for buf := make([]byte, manifest.HotPiece); ; {
		n, err := io.ReadFull(all, buf)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if n > 0 {
			ids, size = append(ids, j.u.chunks.Packs.Coder().Sum(buf[:n])), size+int64(n)
			if err := j.addPiece(ctx, ids[len(ids)-1], buf[:n]); err != nil {
				return err
			}
			tell(int64(n))
		}
		if err != nil {
			break
		}
	}
	if size == 0 {
		return &fault.Error{Class: fault.NotFound, Op: "upload", Checkpoint: id, Err: errors.New("no hot set")}
	}
	j.list.Records = append(j.list.Records, pack.KV{Key: manifest.HotKey(id), Value: manifest.EncodeHot(size, ids)})
	j.put(ctx)
	return nil
}

// addPiece sees to it that the bucket has a chunk that lies in no pack of the store, and the list tells where.
func (j *Upload) addPiece(ctx context.Context, id chunk.ID, content []byte) error {
	if j.places[id] || j.refer(id) {
		return nil
	}
	loc := pack.Loc{Stored: uint32(len(content)), Raw: uint32(len(content)), Codec: chunk.Raw}
	slot := make([]byte, loc.Slot())
	copy(slot, content)
	loc.CRC = crc32c.Checksum(slot)
	return j.pack(ctx, id, loc, slot)
}
