package learned

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// source gives chunks in the order of their ids. number gives for each of its packs, by its number less one, that in
// what is written; 0: its chunks are left out.
type source struct {
	next   func() (pack.Chunk, bool, error)
	number []uint32

	head pack.Chunk
}

func identity(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i + 1)
	}
	return out
}

// step goes on to the next chunk that is not left out.
func (s *source) step() (ok bool, err error) {
	for {
		s.head, ok, err = s.next()
		if !ok || err != nil {
			return false, err
		}
		if n := s.number[s.head.Loc.Pack-1]; n > 0 {
			s.head.Loc.Pack = n
			return true, nil
		}
	}
}

// merge puts one file in place of some, with the packs that stand. Call with mu held.
func (p *Places) merge(files []*file, stands func(object.Name) bool) {
	files = slices.Clone(files)
	var all gathered
	sources := make([]source, len(files))
	for i, f := range files {
		sources[i] = source{next: f.each(), number: make([]uint32, len(f.packs))}
		for k, ref := range f.packs {
			if stands(ref.Name) {
				sources[i].number[k] = all.number(ref)
			}
		}
	}
	made, err := p.write(all.packs, sources)
	if errors.Is(err, errForm) {
		p.remove(files, err)
		return
	}
	if err != nil { // as on a full disk: they stay as they are
		p.o.Logger.Warn("what is known of the bucket could not be put together", "err", err)
		return
	}
	p.files = append(p.files, made)
	p.remove(files, nil)
}

// write writes a file with what sources have, and opens it. packs are those that their numbers name.
func (p *Places) write(packs []object.PackRef, sources []source) (*file, error) {
	s := p.o.Storage
	if _, err := s.Stat(p.o.Dir); err != nil {
		if err := s.Mkdir(p.o.Dir); err != nil {
			return nil, err
		}
	}
	p.last++
	path := filepath.Join(p.o.Dir, fmt.Sprintf("%012d%s", p.last, suffix))
	if err := p.writeNew(path+".new", packs, sources); err != nil {
		_ = s.Remove(path + ".new")
		return nil, err
	}
	if err := s.Rename(path+".new", path); err != nil {
		return nil, err
	}
	return openFile(s, path)
}

func (p *Places) writeNew(path string, packs []object.PackRef, sources []source) (err error) {
	f, err := p.o.Storage.Open(path, storage.Replace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &writer{f: f, version: p.version(), at: headerSize, room: func() error { return p.room() }}
	var table []byte
	for _, ref := range packs {
		table = binary.LittleEndian.AppendUint64(append(table, ref.Name[:]...), uint64(ref.Size))
	}
	if err := w.write(seal(table)); err != nil {
		return err
	}
	if err := joined(sources, w.add); err != nil {
		return err
	}
	return w.finish(len(packs))
}

// version gives that of the files that are written.
func (p *Places) version() uint32 {
	if p.o.Sealed {
		return sealed
	}
	return version
}

// room refuses to go below the floor.
func (p *Places) room() error {
	free, err := p.o.Storage.Free(p.o.Dir)
	if err == nil && free < p.o.Floor {
		err = fmt.Errorf("%w: %d MiB are free", pack.ErrNoSpace, free>>20)
	}
	return err
}

// joined calls add with the chunks of all sources in the order of their ids, each place once.
func joined(sources []source, add func(pack.Chunk) error) error {
	var heap []*source // the least head first
	less := func(i, j int) bool { return bytes.Compare(heap[i].head.ID[:], heap[j].head.ID[:]) < 0 }
	down := func(i int) {
		for {
			k := 2*i + 1
			if k+1 < len(heap) && less(k+1, k) {
				k++
			}
			if k >= len(heap) || !less(k, i) {
				return
			}
			heap[i], heap[k] = heap[k], heap[i]
			i = k
		}
	}
	for i := range sources {
		ok, err := sources[i].step()
		if err != nil {
			return err
		}
		if ok {
			heap = append(heap, &sources[i])
		}
	}
	for i := len(heap) / 2; i >= 0; i-- {
		down(i)
	}
	var same []pack.Chunk // those of one id that were passed on
	for len(heap) > 0 {
		s := heap[0]
		c := s.head
		if len(same) > 0 && same[0].ID != c.ID {
			same = same[:0]
		}
		if !slices.Contains(same, c) {
			if err := add(c); err != nil {
				return err
			}
			same = append(same, c)
		}
		ok, err := s.step()
		if err != nil {
			return err
		}
		if !ok {
			last := len(heap) - 1
			heap[0], heap = heap[last], heap[:last]
		}
		down(0)
	}
	return nil
}

// writeBytes is how much is written at once.
const writeBytes = 1 << 20

// writer writes a file of places.
type writer struct {
	f       storage.File
	version uint32
	room    func() error
	at      int64 // where buf goes
	buf     []byte
	block   []byte // being gathered
	records int
	fences  []byte
}

func (w *writer) write(b []byte) error {
	w.buf = append(w.buf, b...)
	if len(w.buf) < writeBytes {
		return nil
	}
	return w.flush()
}

func (w *writer) flush() error {
	if err := w.room(); err != nil {
		return err
	}
	_, err := w.f.WriteAt(w.buf, w.at)
	w.at += int64(len(w.buf))
	w.buf = w.buf[:0]
	return err
}

func (w *writer) add(c pack.Chunk) error {
	if len(w.block) == 0 {
		w.fences = append(w.fences, c.ID[:fenceSize]...)
	}
	w.block = pack.AppendLoc(append(w.block, c.ID[:]...), c.Loc)
	w.records++
	if w.records%perBlock > 0 {
		return nil
	}
	return w.turn()
}

// turn ends a block.
func (w *writer) turn() error {
	err := w.write(seal(w.block))
	w.block = w.block[:0]
	return err
}

func (w *writer) finish(packs int) error {
	if len(w.block) > 0 {
		if err := w.turn(); err != nil {
			return err
		}
	}
	w.buf = append(w.buf, seal(w.fences)...)
	if err := w.flush(); err != nil {
		return err
	}
	h := binary.LittleEndian.AppendUint32(nil, magic)
	h = binary.LittleEndian.AppendUint32(h, w.version)
	h = binary.LittleEndian.AppendUint64(h, uint64(packs))
	h = binary.LittleEndian.AppendUint64(h, uint64(w.records))
	_, err := w.f.WriteAt(seal(h), 0)
	return err
}
