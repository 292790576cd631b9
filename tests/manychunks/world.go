package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

const (
	chunkBytes = 256 << 10
	perPack    = object.TargetSize / chunkBytes
	fileName   = "pages-1.img"
)

// hollow is a bucket whose packs have a length and no content: as much as is asked for is made when it is read. Lists
// and roots are what they are.
type hollow struct {
	*memory.Bucket

	mu    sync.Mutex
	packs map[string]hollowPack // by their keys
}

// hollowPack is a pack that is made when it is read.
type hollowPack struct {
	seed uint64
	size int64
}

// ReadAt is of io.ReaderAt, for uploads.
func (p hollowPack) ReadAt(b []byte, off int64) (int, error) {
	for n := 0; n < len(b); {
		at := off + int64(n)
		c := content(p.seed, at/chunkBytes)
		n += copy(b[n:], c[at%chunkBytes:])
	}
	return len(b), nil
}

// content gives the content of a chunk of a pack.
func content(seed uint64, number int64) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	binary.LittleEndian.PutUint64(key[8:], uint64(number))
	b := make([]byte, chunkBytes)
	rand.NewChaCha8(key).Read(b)
	return b
}

func (h *hollow) Put(ctx context.Context, key string, c io.ReaderAt, size int64, cond bucket.Cond) (string, error) {
	p, ok := c.(hollowPack)
	if !ok {
		return h.Bucket.Put(ctx, key, c, size, cond)
	}
	h.mu.Lock()
	h.packs[key] = p
	h.mu.Unlock()
	return h.Bucket.Put(ctx, key, bytes.NewReader(nil), 0, cond)
}

func (h *hollow) hollow(key string) (hollowPack, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, ok := h.packs[key]
	return p, ok
}

func (h *hollow) Get(ctx context.Context, key string, b []byte, off int64) (int, bucket.Info, error) {
	n, info, err := h.Bucket.Get(ctx, key, b, off)
	if p, ok := h.hollow(key); ok && err == nil {
		info.Size = p.size
		n, err = p.ReadAt(b[:max(0, min(int64(len(b)), p.size-off))], off)
	}
	return n, info, err
}

func (h *hollow) List(ctx context.Context, prefix, after string) ([]bucket.Info, bool, error) {
	page, more, err := h.Bucket.List(ctx, prefix, after)
	for i := range page {
		if p, ok := h.hollow(page[i].Key); ok {
			page[i].Size = p.size
		}
	}
	return page, more, err
}

func (h *hollow) Stat(ctx context.Context, key string) (bucket.Info, error) {
	info, err := h.Bucket.Stat(ctx, key)
	if p, ok := h.hollow(key); ok && err == nil {
		info.Size = p.size
	}
	return info, err
}

// generate makes a bucket with checkpoints of so many chunks each, none of which two have. Only the first chunk of each
// has the id of its content: nobody could hash the rest in reasonable time, and nobody reads it.
func generate(ctx context.Context, checkpoints, chunks int) (*hollow, error) {
	h := &hollow{Bucket: memory.New(memory.Hooks{}), packs: map[string]hollowPack{}}
	s, _, err := remote.Make(ctx, h, chunk.DefaultParams(), remote.Options{})
	if err != nil {
		return nil, err
	}
	var id [16]byte
	if _, err := hex.Decode(id[:], []byte(s.Config().ID)); err != nil {
		return nil, err
	}
	c := catalog.New(h, catalog.Options{ConditionalDelete: s.Config().ConditionalDelete})
	for i := range checkpoints {
		if err := generateOne(ctx, c, id, uint64(i), chunks); err != nil {
			return nil, fmt.Errorf("checkpoint %d: %w", i, err)
		}
	}
	return h, nil
}

func nameOf(i uint64) string { return fmt.Sprintf("web-%d", i) }

func generateOne(ctx context.Context, c *catalog.Catalog, store [16]byte, number uint64, n int) error {
	d, err := c.Begin(ctx, nameOf(number))
	if err != nil {
		return err
	}
	var packs []catalog.Pack
	l := &object.List{}
	for left := n; left > 0; left -= perPack {
		p := hollowPack{number<<24 | uint64(len(packs)), int64(min(left, perPack)) * chunkBytes}
		put, err := d.Add(ctx, p, p.size)
		if err != nil {
			return err
		}
		name, err := object.ParseName(put.ID)
		if err != nil {
			return err
		}
		packs = append(packs, put)
		l.Packs = append(l.Packs, object.PackRef{Name: name, Size: p.size})
	}
	ids := rand.NewChaCha8([32]byte{1, byte(number), byte(number >> 8), byte(number >> 16)})
	for i := range n {
		x := pack.Chunk{Loc: pack.Loc{Pack: uint32(i/perPack) + 1, Stored: chunkBytes, Raw: chunkBytes,
			Page: uint32(i % perPack * (chunkBytes / chunk.PageSize)), Codec: chunk.Raw}}
		ids.Read(x.ID[:])
		if i == 0 {
			b := content(number<<24, 0)
			x.ID, x.Loc.CRC = chunk.Sum(b), crc32c.Checksum(b)
		}
		l.Chunks = append(l.Chunks, x)
	}
	meta, err := records(l, number, n)
	if err != nil {
		return err
	}
	b, err := l.Encode(store)
	if err != nil {
		return err
	}
	list, err := d.Add(ctx, bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return err
	}
	meta.List = list.ID
	text, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	return d.Seal(ctx, append(packs, list), text)
}

// records gives a list the records of a checkpoint with one file.
func records(l *object.List, number uint64, n int) (remote.Meta, error) {
	id := fmt.Sprintf("%016x", number+1)
	size := int64(n) * chunkBytes
	now := time.Unix(1<<30, 0).UTC()
	root, err := manifest.EncodeCheckpoint(&manifestpb.Checkpoint{Id: id, Name: nameOf(number), Sealed: true,
		CreatedNs: now.UnixNano(), SealedNs: now.UnixNano(), Files: 1, Logical: size, Parts: 1})
	if err != nil {
		return remote.Meta{}, err
	}
	file := &manifestpb.Entry{Path: fileName, Perm: 0o600, Size: size}
	var segments []pack.KV
	for first := 0; first < n; first += manifest.MaxChunks {
		k := min(manifest.MaxChunks, n-first)
		seg := &manifest.Segment{Start: int64(first) * chunkBytes, Len: int64(k) * chunkBytes}
		for i := range k {
			id := l.Chunks[first+i].ID
			seg.Chunks = append(seg.Chunks, manifest.ChunkRef{ID: id, Len: chunkBytes, Stored: chunkBytes})
			seg.Runs = append(seg.Runs, manifest.Run{Start: int64(i) * chunkBytes, Len: chunkBytes, Chunk: int32(i)})
		}
		b, err := manifest.EncodeSegment(seg)
		if err != nil {
			return remote.Meta{}, err
		}
		file.Segments = append(file.Segments, seg.Start)
		segments = append(segments, pack.KV{Key: manifest.SegmentKey(id, 0, seg.Start), Value: b})
	}
	table, err := manifest.EncodeEntries([]*manifestpb.Entry{file})
	if err != nil {
		return remote.Meta{}, err
	}
	l.Records = []pack.KV{{Key: manifest.RootKey(id), Value: root}, {Key: manifest.TableKey(id, 0), Value: table}}
	l.Records = append(l.Records, segments...)
	return remote.Meta{ID: id, Sealed: now, Logical: size, Files: 1}, nil
}
