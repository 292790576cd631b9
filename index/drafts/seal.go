package drafts

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// sealBatch is how many bytes of segments go into one commit: it bounds memory while a large checkpoint is sealed.
const sealBatch = 16 << 20

// partBytes is where a new part of the table of files is begun.
const partBytes = 1 << 20

// Seal makes the checkpoint complete, durable and immutable: when it returns nil, no crash loses it. Writes that were
// acknowledged are in it; those that come meanwhile wait, and fail once it is sealed. Files that are open go on as
// read-only. Its tags are taken from the checkpoints that bear them, in the same commit. When it fails the draft stays
// as it is, to be sealed again or aborted. A file of which something could not be stored has to be emptied or removed
// before that.
func (d *Draft) Seal(ctx context.Context) (roots.Info, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return roots.Info{}, d.over("")
	}
	d.writes.Lock()
	defer d.writes.Unlock()
	fail := func(err error) (roots.Info, error) {
		d.tried = true
		return roots.Info{}, d.at("seal", "", fault.Classify("seal", err))
	}
	d.recut()
	w := sealWriter{d: d, pb: proto.CloneOf(d.s.roots.Record(d.r))}
	if d.s.o.Labels != nil {
		roots.AddLabels(w.pb, d.s.o.Labels(d.view()))
	}
	for _, p := range slices.Sorted(maps.Keys(d.nodes)) {
		if err := ctx.Err(); err != nil {
			return fail(err)
		}
		if err := w.add(p, d.nodes[p]); err != nil {
			return fail(fmt.Errorf("%s: %w", p, err))
		}
	}
	d.s.Hooks.Sealing.Run()
	info, changed, err := w.finish()
	if err != nil {
		return fail(err)
	}
	d.pins.Release()
	d.s.o.Unsealed.End(d.id)
	d.s.roots.Announce(d.name)
	for _, name := range changed {
		d.s.roots.Announce(name)
	}
	return info, nil
}

// sealWriter gathers the records of a checkpoint and commits them, the root last.
type sealWriter struct {
	d       *Draft
	pb      *manifestpb.Checkpoint
	puts    []chunks.Put
	bytes   int
	entries []*manifestpb.Entry
	size    int // of entries, about
}

func (w *sealWriter) put(key string, payload []byte) error {
	w.puts = append(w.puts, chunks.Put{Key: key, Payload: payload})
	w.bytes += len(payload)
	if w.bytes < sealBatch {
		return nil
	}
	puts := w.puts
	w.puts, w.bytes = nil, 0
	return w.d.s.chunks.Commit(puts)
}

func (w *sealWriter) add(p string, n *node) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := &manifestpb.Entry{Path: p, Perm: uint32(n.perm), MtimeNs: n.mtime.UnixNano(), Number: n.number,
		Target: n.target}
	switch n.kind {
	case fs.ModeDir:
		e.Type = manifestpb.Entry_DIRECTORY
	case fs.ModeSymlink:
		e.Type = manifestpb.Entry_SYMLINK
		e.Size = int64(len(n.target))
	default:
		inline, err := n.content.finish()
		if err != nil {
			return err
		}
		e.Size, e.Zero, e.Inline = n.content.size(), n.content.zero, inline
		for _, seg := range n.content.closed {
			e.Segments = append(e.Segments, seg.start)
			payload, err := n.content.encoded(seg)
			if err != nil {
				return err
			}
			if err := w.put(n.content.key(seg), payload); err != nil {
				return err
			}
		}
		w.pb.Files++
		w.pb.Logical += e.Size
		w.pb.Zero += e.Zero
	}
	w.entries = append(w.entries, e)
	w.size += len(p) + len(e.Inline) + len(e.Target) + 8*len(e.Segments) + 64
	if w.size >= partBytes {
		return w.part()
	}
	return nil
}

// part writes one part of the table of files.
func (w *sealWriter) part() error {
	payload, err := manifest.EncodeEntries(w.entries)
	if err != nil {
		return err
	}
	key := manifest.TableKey(w.d.id, int(w.pb.Parts))
	w.pb.Parts++
	w.entries, w.size = nil, 0
	return w.put(key, payload)
}

// finish commits the root record, and with it those of checkpoints that lose a tag; it gives their names.
func (w *sealWriter) finish() (info roots.Info, changed []string, err error) {
	if len(w.entries) > 0 {
		if err := w.part(); err != nil {
			return roots.Info{}, nil, err
		}
	}
	d, s := w.d, w.d.s
	w.pb.Sealed = true
	w.pb.ParentId = d.parent
	change := s.roots.BeginSealing(d.r, w.pb)
	defer change.End()
	for _, o := range change.Others() {
		changed = append(changed, o.Name())
		d.untagged = append(d.untagged, o)
	}
	if len(changed) > 0 {
		// The root records make one frame of a journal, which is there as a whole or not at all.
		if err := s.chunks.Commit(w.puts); err != nil {
			return roots.Info{}, nil, err
		}
		w.puts = nil
	}
	w.pb.SealedNs = time.Now().UnixNano()
	puts, err := change.Puts()
	if err != nil {
		return roots.Info{}, nil, err
	}
	if err := d.commitRoot(append(w.puts, puts...)); err != nil {
		return roots.Info{}, nil, err
	}
	d.ended = true
	handles := 0
	for _, n := range d.nodes {
		handles += n.end(true)
	}
	return change.Done(handles), changed, nil
}
