package upkeep

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/blake3"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// ProgressName is the file that tells how far a verification of the whole store has come. It is there from its first
// save to the verification's end. Numbers are little-endian:
//
//	0   8    "GPUCRVP1"
//	8   16   id of the store
//	24  8    when the verification began, nanoseconds since 1970
//	32  24*n the packs of which payload was read, by ascending number:
//	           4   number
//	           4   page of the last slot up to which every slot was read
//	           16  sum over these slots, see readSum
//	end 4    CRC-32C of all that
//
// Nothing in it is believed of a pack unless the sum is that of the slots that the journal lists now. So a pack
// that gc emptied in part, or whose number was used again, is read anew; one that grew is read from the page on.
const ProgressName = "verify.progress"

const (
	progressMagic = "GPUCRVP1"
	ProgressHead  = 32
	ProgressEntry = 24

	// MaxProgressPacks bounds the file, to 12 MiB: what more packs there are, is read again after an interruption.
	MaxProgressPacks = 1 << 19
)

// SaveEvery is how often progress is saved. One save costs two syncs.
const SaveEvery = 5 * time.Second

// ReadPart says how far a pack was read.
type ReadPart struct {
	Page uint32
	Sum  readSum
}

// readSum is a hash over the ids and places of slots that were read, in their order. Slots that are recorded as
// damaged do not go into it: where such a record is lost, the sum is no longer right, and the pack is read anew.
type readSum [16]byte

// verifyProgress is how far a verification has come.
type verifyProgress struct {
	s     *Jobs
	clock Clock
	begun time.Time

	saving sync.Mutex // one save at a time; guards saved and failed
	saved  time.Time
	failed bool

	mu    sync.Mutex // guards what follows
	packs map[uint32]ReadPart
	// The pack that is being read.
	now  uint32
	list []pack.Chunk // its slots in their order
	fed  int          // how many of them have been read, without a gap
	ends map[int]int  // runs read behind a gap: begin and end in list
	hash *blake3.Hasher
}

// beginProgress gives the progress to go on with, or that of a new verification.
func (s *Jobs) beginProgress(resume bool, c Clock) (p *verifyProgress, resumed bool) {
	p = &verifyProgress{s: s, clock: c, begun: c.Now(), saved: c.Now(), packs: map[uint32]ReadPart{}}
	path := filepath.Join(s.o.Dir, ProgressName)
	if !resume {
		p.remove()
		return p, false
	}
	limit := int64(ProgressHead + MaxProgressPacks*ProgressEntry + 4)
	b, err := storage.ReadFile(s.o.Storage, path, limit+1)
	if errors.Is(err, os.ErrNotExist) {
		s.log.Info("there is no verification to go on with: it begins anew")
		return p, false
	}
	var begun time.Time
	var packs map[uint32]ReadPart
	if err == nil {
		begun, packs, err = DecodeProgress(b, s.o.ID)
	}
	if err != nil {
		s.log.Warn("how far the verification had come cannot be read: it begins anew", "file", path, "err", err)
		p.remove()
		return p, false
	}
	p.begun, p.packs = begun, packs
	return p, true
}

// DecodeProgress gives what a file of progress says, if it belongs to the store.
func DecodeProgress(b []byte, store [16]byte) (begun time.Time, packs map[uint32]ReadPart, err error) {
	bad := func(why string) (time.Time, map[uint32]ReadPart, error) {
		return time.Time{}, nil, fmt.Errorf("%w: %s", pack.ErrCorrupt, why)
	}
	n := len(b) - ProgressHead - 4
	if n < 0 || n%ProgressEntry != 0 || n/ProgressEntry > MaxProgressPacks {
		return bad(fmt.Sprintf("it has %d bytes", len(b)))
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if string(b[:8]) != progressMagic || crc32c.Checksum(body) != sum {
		return bad("wrong checksum")
	}
	if !bytes.Equal(b[8:24], store[:]) {
		return bad("it belongs to another store")
	}
	packs = make(map[uint32]ReadPart, n/ProgressEntry)
	last := int64(-1)
	for e := body[ProgressHead:]; len(e) > 0; e = e[ProgressEntry:] {
		number := binary.LittleEndian.Uint32(e)
		if int64(number) <= last {
			return bad("packs out of order")
		}
		last = int64(number)
		packs[number] = ReadPart{binary.LittleEndian.Uint32(e[4:]), readSum(e[8:])}
	}
	return time.Unix(0, int64(binary.LittleEndian.Uint64(b[24:]))).UTC(), packs, nil
}

// EncodeProgress gives the file of progress.
func EncodeProgress(begun time.Time, packs map[uint32]ReadPart, store [16]byte) []byte {
	b := append([]byte(progressMagic), store[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(begun.UnixNano()))
	numbers := slices.Sorted(maps.Keys(packs))
	for _, n := range numbers[:min(len(numbers), MaxProgressPacks)] {
		b = binary.LittleEndian.AppendUint32(b, n)
		part := packs[n]
		b = binary.LittleEndian.AppendUint32(b, part.Page)
		b = append(b, part.Sum[:]...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b))
}

// keepOnly forgets packs that are gone.
func (p *verifyProgress) keepOnly(packs []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.packs, func(n uint32, _ ReadPart) bool { _, ok := slices.BinarySearch(packs, n); return !ok })
}

// done gives how many slots of the list of pack n were read before, from the first one on. They are those that the
// journal listed then.
func (p *verifyProgress) done(n uint32, list []pack.Chunk) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	part, ok := p.packs[n]
	if !ok {
		return 0
	}
	count, _ := slices.BinarySearchFunc(list, part.Page, func(c pack.Chunk, page uint32) int {
		if c.Loc.Page <= page {
			return -1
		}
		return 1
	})
	h := blake3.New()
	p.feed(h, list[:count])
	if count == 0 || list[count-1].Loc.Page != part.Page || sumOf(h) != part.Sum {
		delete(p.packs, n)
		return 0
	}
	return count
}

// begin says that the slots of pack n are read now, of which the first done have been.
func (p *verifyProgress) begin(n uint32, list []pack.Chunk, done int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.list, p.fed, p.ends, p.hash = n, list, done, map[int]int{}, blake3.New()
	p.feed(p.hash, list[:done])
	p.keep()
}

// read says that the slots from to end of the list have been read, and what is wrong with them is known.
func (p *verifyProgress) read(from, to int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends[from] = to
	for end, ok := p.ends[p.fed]; ok; end, ok = p.ends[p.fed] {
		delete(p.ends, p.fed)
		p.feed(p.hash, p.list[p.fed:end])
		p.fed = end
	}
	p.keep()
}

// keep keeps how far the pack has been read. Call with mu held.
func (p *verifyProgress) keep() {
	if p.fed > 0 {
		p.packs[p.now] = ReadPart{p.list[p.fed-1].Loc.Page, sumOf(p.hash)}
	}
}

func (p *verifyProgress) feed(h *blake3.Hasher, list []pack.Chunk) {
	b := make([]byte, 0, len(chunk.ID{})+pack.LocSize)
	for _, c := range list {
		if !p.s.chunks.IsDamaged(c.ID, c.Loc) {
			b = pack.AppendLoc(append(b[:0], c.ID[:]...), c.Loc)
			h.Write(b)
		}
	}
}

func sumOf(h *blake3.Hasher) (out readSum) {
	copy(out[:], h.Sum(nil))
	return out
}

// saveSometimes saves when it is time to.
func (p *verifyProgress) saveSometimes() {
	if !p.saving.TryLock() {
		return
	}
	defer p.saving.Unlock()
	if p.clock.Now().Sub(p.saved) >= SaveEvery {
		p.saveLocked()
	}
}

// save makes durable how far the verification has come.
func (p *verifyProgress) save() {
	p.saving.Lock()
	defer p.saving.Unlock()
	p.saveLocked()
}

// saveLocked is save for the one who holds saving. The damage in what was read is made durable first: what the file
// says was read is not looked at again unless it is recorded as damaged. Without the file nothing is lost but time.
func (p *verifyProgress) saveLocked() {
	if p.s.o.ReadOnly {
		return
	}
	p.mu.Lock()
	b := EncodeProgress(p.begun, p.packs, p.s.o.ID)
	p.mu.Unlock()
	err := p.s.chunks.RecordDamage()
	if err == nil {
		err = storage.WriteFile(p.s.o.Storage, filepath.Join(p.s.o.Dir, ProgressName), b)
	}
	if err != nil && !p.failed {
		p.s.log.Warn("how far the verification has come could not be saved", "err", err)
		p.failed = true
	}
	p.saved = p.clock.Now()
}

// remove forgets how far a verification has come, in the store's folder.
func (p *verifyProgress) remove() {
	if p.s.o.ReadOnly {
		return
	}
	st, path := p.s.o.Storage, filepath.Join(p.s.o.Dir, ProgressName)
	err := st.Remove(path)
	if err == nil {
		err = st.SyncDir(p.s.o.Dir)
	}
	// The second is what a failed save leaves.
	for _, err := range []error{err, st.Remove(path + ".new")} {
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			p.s.log.Warn("the progress of a verification that is over could not be removed", "file", path, "err", err)
		}
	}
}
