// Package distant is the packs that lie in a bucket, as the index of a store knows them.
//
// Each has a number here, from pack.FirstDistant on, and a metadata key, journalled like all others, that tells which
// object it is and which chunks are known to lie in it. The index keeps the locations of these chunks under their ids
// as well, apart from those of chunks that the store itself has. So a chunk that is here is never looked for
// elsewhere, and nothing that is stored here relies on what is not: look-ups by content do not see distant chunks.
//
// What is known of a pack is never taken for more than it is: whether its object still stands, and holds what it
// should, shows when it is read.
//
// # Lock order
//
// learnMu, (locks of the one who commits), mu.
package distant

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/remote/nodecache"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// Source gives slots of packs that lie in a bucket.
type Source interface {
	ReadSlots(ctx context.Context, o nodecache.Object, list []pack.Chunk, bufs [][]byte, past bool) []error
	// Bring fetches slots before anybody asks for them; see [nodecache.Cache.Bring].
	Bring(ctx context.Context, list []nodecache.Wanted, came func(numbers []int))
}

// prefix begins the keys that tell of distant packs: the number that the pack has here, and as value
//
//	20 bytes name of the object | u64 bytes of the object | for each chunk known of it its id and its location
//
// A pack that nothing needs is forgotten (Forget): its key stays without a value, so no number is given twice. That an
// object is gone is no reason to forget it while a checkpoint here needs it: what the node has kept of it can be read.
const prefix = "distant/"

// lastKey is the key of the number given last (u32): it is not given again where the index has lost that pack's key.
const lastKey = prefix + "last"

func keyOf(n uint32) string { return fmt.Sprintf("%s%08d", prefix, n) }

// maxChunks is how many chunks a key of a distant pack tells of: those of a pack object with slots of one page.
const maxChunks = object.MaxPack / chunk.PageSize

// commitBytes is how many bytes of keys go into one commit.
const commitBytes = 16 << 20

const headSize = object.NameSize + 8

// The value of a distant pack's key is one that a journal takes.
const _ = uint(pack.MaxValue - headSize - maxChunks*(chunk.IDSize+pack.SealedLocSize))

// Others is what other machines have told of the bucket.
type Others interface {
	// Find gives a place of a chunk.
	Find(id chunk.ID) (p object.PackRef, loc pack.Loc, ok bool)
}

// Packs is what is known of distant packs.
type Packs struct {
	db     *keys.DB
	log    *slog.Logger
	record int // bytes of a chunk in a value
	coder  *cipher.Coder
	source Source // nil: this store has no bucket
	others Others // nil: nothing was told

	learnMu   sync.Mutex // one Learn or Forget at a time
	noted     uint32     // what lastKey says
	unsettled bool       // the index may have places in forgotten packs that stand in the way; set while it is opened

	mu      sync.Mutex
	packs   map[uint32]object.PackRef
	numbers map[object.Name]uint32
	last    uint32          // number given last
	shunned map[uint32]bool // see Elsewhere
	holds   int             // see Hold
	touched map[uint32]bool // learned of while holds > 0
}

// New gives a Packs that knows of no pack yet. What becomes known of packs is kept in db. c encrypts what lies in the
// bucket; nil: nothing is encrypted.
func New(db *keys.DB, log *slog.Logger, c *cipher.Coder) *Packs {
	return &Packs{db: db, log: log, coder: c, record: chunk.IDSize + pack.SizeOfLoc(c),
		packs: map[uint32]object.PackRef{}, numbers: map[object.Name]uint32{},
		last: pack.FirstDistant - 1, shunned: map[uint32]bool{}, touched: map[uint32]bool{}}
}

// SetSource says who has what lies in the bucket. It is called before anything is read.
func (d *Packs) SetSource(s Source) { d.source = s }

// SetOthers says who knows what others have told of the bucket. It is called before anything is read.
func (d *Packs) SetOthers(o Others) { d.others = o }

func (d *Packs) encode(p object.PackRef, list []pack.Chunk) []byte {
	b := make([]byte, 0, headSize+len(list)*d.record)
	b = append(b, p.Name[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(p.Size))
	for _, c := range list {
		b = pack.AppendLoc(append(b, c.ID[:]...), c.Loc)
	}
	return b
}

// decode reads the value of the key of distant pack n. list may be nil: then the chunks are not looked at.
func (d *Packs) decode(n uint32, b []byte, list func(pack.Chunk)) (object.PackRef, error) {
	var p object.PackRef
	if len(b) < headSize || (len(b)-headSize)%d.record != 0 {
		return p, fmt.Errorf("%w: a distant pack of %d bytes", keys.ErrDamaged, len(b))
	}
	copy(p.Name[:], b)
	size := binary.LittleEndian.Uint64(b[object.NameSize:])
	if size > object.MaxPack {
		return p, fmt.Errorf("%w: a distant pack of %d bytes", keys.ErrDamaged, size)
	}
	p.Size = int64(size)
	if list == nil {
		return p, nil
	}
	for b = b[headSize:]; len(b) > 0; b = b[d.record:] {
		loc, err := pack.DecodeLoc(b[chunk.IDSize:d.record])
		if err != nil || loc.Pack != n || loc.Offset()+loc.Slot() > p.Size {
			return p, fmt.Errorf("%w: a chunk of distant pack %d lies at %d of pack %d", keys.ErrDamaged, n,
				loc.Offset(), loc.Pack)
		}
		list(pack.Chunk{ID: chunk.ID(b[:chunk.IDSize]), Loc: loc})
	}
	return p, nil
}

// numberOf gives the number in the key of a distant pack.
func numberOf(key string) (uint32, bool) {
	digits, ok := strings.CutPrefix(key, prefix)
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), ok && err == nil && n >= pack.FirstDistant && n <= pack.MaxNumber
}

// IsKey says whether a key tells of distant packs.
func IsKey(key string) bool {
	_, ok := numberOf(key)
	return ok || key == lastKey
}

// Index gives the index the chunks of distant packs that keys tell of; other keys are left alone.
func (d *Packs) Index(b *keys.Batch, kvs []pack.KV) {
	for _, kv := range kvs {
		n, ok := numberOf(kv.Key)
		if !ok {
			continue
		}
		if len(kv.Value) == 0 {
			d.unindex(b, n)
			continue
		}
		if _, err := d.decode(n, kv.Value, b.SetDistant); err != nil {
			d.log.Error("what a journal tells of a distant pack cannot be read", "pack", n, "err", err)
		}
	}
}

// Load reads which distant packs there are.
func (d *Packs) Load() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.db.Metas(prefix, func(key string, _ uint64, payload []byte, err error) error {
		if key == lastKey && err == nil && len(payload) == 4 {
			if d.noted = binary.LittleEndian.Uint32(payload); d.noted <= pack.MaxNumber {
				d.last = max(d.last, d.noted)
			}
		}
		n, ok := numberOf(key)
		if !ok {
			return nil
		}
		if d.last = max(d.last, n); err == nil && len(payload) == 0 {
			return nil // forgotten
		}
		var p object.PackRef
		if err == nil {
			p, err = d.decode(n, payload, nil)
		}
		if err != nil {
			d.log.Error("what is known of a distant pack cannot be read", "pack", n, "err", err)
			return nil
		}
		d.packs[n], d.numbers[p.Name] = p, n
		return nil
	})
	return fault.Classify("open store", errors.Join(err, d.reindex()))
}

// Learn notes where chunks lie in distant packs: packs[i] is what locations call pack i+1. When it returns nil that is
// durable, by commit. What it knew of these packs before stays.
func (d *Packs) Learn(packs []object.PackRef, list []pack.Chunk, commit func([]keys.Put) error) error {
	d.learnMu.Lock()
	defer d.learnMu.Unlock()
	of := make([][]pack.Chunk, len(packs))
	for _, c := range list {
		of[c.Loc.Pack-1] = append(of[c.Loc.Pack-1], c)
	}
	if slices.ContainsFunc(packs, func(p object.PackRef) bool { return p.Size == 0 }) {
		return &fault.Error{Class: fault.Corrupt, Op: "learn of a pack", Err: errors.New("a pack object without slots")}
	}
	var puts []keys.Put
	bytes := 0
	learned := map[uint32]object.PackRef{}
	settle := func() error {
		d.mu.Lock()
		last := d.last
		d.mu.Unlock()
		if last != d.noted && len(puts) > 0 {
			puts = append(puts, keys.Put{Key: lastKey, Payload: binary.LittleEndian.AppendUint32(nil, last)})
		}
		if err := commit(puts); err != nil {
			return err
		}
		if len(puts) > 0 {
			d.noted = last
		}
		d.mu.Lock()
		for n, p := range learned {
			d.packs[n], d.numbers[p.Name] = p, n
		}
		d.mu.Unlock()
		puts, bytes = nil, 0
		clear(learned)
		return nil
	}
	for i, p := range packs {
		n, value, err := d.merge(p, of[i])
		if err != nil {
			return err
		}
		if value == nil {
			continue // nothing new
		}
		puts = append(puts, keys.Put{Key: keyOf(n), Payload: value})
		learned[n] = p
		if bytes += len(value); bytes >= commitBytes {
			if err := settle(); err != nil {
				return err
			}
		}
	}
	return settle()
}

// merge gives the number of a distant pack, and what its key is to say: what it says, and these chunks. It is nil when
// there is nothing new. Call with learnMu held.
func (d *Packs) merge(p object.PackRef, list []pack.Chunk) (n uint32, value []byte, err error) {
	d.mu.Lock()
	n, known := d.numbers[p.Name]
	old := d.packs[n]
	d.mu.Unlock()
	at := map[uint32]pack.Chunk{}
	if known {
		_, v, err := d.db.Meta(keyOf(n))
		if err == nil {
			_, err = d.decode(n, v, func(c pack.Chunk) { at[c.Loc.Page] = c })
		}
		if keys.Failed(err) {
			return 0, nil, fault.Classify("learn of a pack", err)
		}
		if err != nil {
			// It gets another number. The journals may have that record whole: it is not written over.
			d.log.Error("what is known of a distant pack cannot be read", "pack", n, "err", err)
			known = false
		}
		if !known || p.Size != old.Size { // what is said last counts: somebody was wrong
			clear(at)
		}
	}
	d.mu.Lock()
	if !known {
		d.last++
		n = d.last
	}
	if d.holds > 0 {
		d.touched[n] = true
	}
	d.mu.Unlock()
	if n > pack.MaxNumber {
		return 0, nil, &fault.Error{Class: fault.NoSpace, Op: "learn of a pack",
			Err: errors.New("the numbers of packs are used up")}
	}
	news := !known
	for _, c := range list {
		c.Loc.Pack = n
		news = news || at[c.Loc.Page] != c
		if c.Loc.Offset()+c.Loc.Slot() > p.Size {
			return 0, nil, &fault.Error{Class: fault.Corrupt, Op: "learn of a pack",
				Err: fmt.Errorf("a chunk at %d of pack object %s, which has %d bytes", c.Loc.Offset(), p.Name, p.Size)}
		}
		at[c.Loc.Page] = c
	}
	if !news {
		return n, nil, nil
	}
	all := make([]pack.Chunk, 0, len(at))
	for _, c := range at {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b pack.Chunk) int { return int(a.Loc.Page) - int(b.Loc.Page) })
	return n, d.encode(p, all), nil
}

// Elsewhere replaces, in the index, the places of the chunks of a pack that is gone or holds something else: by places
// in packs that other keys name. It looks once for each pack, again where the index could not be read; it says whether
// it looked.
func (d *Packs) Elsewhere(n uint32) (looked bool, err error) {
	d.mu.Lock()
	looked = !d.shunned[n]
	d.shunned[n] = true
	shunned := maps.Clone(d.shunned)
	d.mu.Unlock()
	if !looked {
		return false, nil
	}
	wanted := map[chunk.ID]bool{}
	_, v, err := d.db.Meta(keyOf(n))
	if err == nil {
		_, err = d.decode(n, v, func(c pack.Chunk) { wanted[c.ID] = true })
	}
	if err != nil {
		d.lookAgain(n)
		return true, fault.Classify("look for other packs", err)
	}
	var found []pack.Chunk
	err = d.db.Metas(prefix, func(key string, _ uint64, payload []byte, err error) error {
		if m, ok := numberOf(key); ok && err == nil && len(payload) > 0 && !shunned[m] {
			_, _ = d.decode(m, payload, func(c pack.Chunk) { // what is damaged of it shows elsewhere
				if wanted[c.ID] {
					found = append(found, c)
				}
			})
		}
		return nil
	})
	if err != nil {
		d.lookAgain(n)
	}
	b := d.db.Batch()
	for _, c := range found {
		b.SetDistant(c)
	}
	return true, fault.Classify("look for other packs", errors.Join(err, b.Flush()))
}

func (d *Packs) lookAgain(n uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.shunned, n)
}

// OfOthers gives the index a place where others have a chunk, if one is known.
func (d *Packs) OfOthers(id chunk.ID, commit func([]keys.Put) error) {
	if d.others == nil || d.db.ReadOnly() {
		return
	}
	p, loc, ok := d.others.Find(id)
	if !ok {
		return
	}
	loc.Pack = 1
	if err := d.Learn([]object.PackRef{p}, []pack.Chunk{{ID: id, Loc: loc}}, commit); err != nil {
		d.log.Error("the place of a chunk that others have told cannot be noted", "chunk", id.String(), "err", err)
	}
}

// Pack says what a distant pack is.
func (d *Packs) Pack(n uint32) (p object.PackRef, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok = d.packs[n]
	return p, ok
}

// Knows says whether anything is known of a pack object.
func (d *Packs) Knows(name object.Name) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.numbers[name]
	return ok
}

// ErrNoBucket: what was asked for lies in a bucket, and the store was opened without one.
var ErrNoBucket = errors.New("it lies in a bucket, and this store is opened without one")

// ReadSlots reads the slots of chunks that lie one behind the other in one distant pack; see [pack.Set.ReadSlots].
// verify refuses a slot, decrypted, that does not hold the content of a chunk. Class Unreachable where the bucket does
// not give them.
func (d *Packs) ReadSlots(
	list []pack.Chunk, bufs [][]byte, past bool, verify func(c pack.Chunk, slot []byte) error,
) []error {
	p, ok := d.Pack(list[0].Loc.Pack)
	var err error
	switch {
	case !ok:
		err = fmt.Errorf("distant pack %d: %w: nothing is known of it", list[0].Loc.Pack, pack.ErrCorrupt)
	case d.source == nil:
		err = unreachable(p.Name, ErrNoBucket)
	}
	if err != nil {
		return slices.Repeat([]error{err}, len(list))
	}
	o := nodecache.Object{Name: p.Name, Size: p.Size, Verify: d.plainly(verify)}
	errs := d.source.ReadSlots(context.Background(), o, list, bufs, past)
	for i, err := range errs {
		if err != nil && !errors.Is(err, pack.ErrCorrupt) {
			errs[i] = unreachable(p.Name, err)
		}
		if d.coder != nil && err == nil {
			errs[i] = pack.Decrypt(d.coder, list[i].Loc, bufs[i])
		}
	}
	return errs
}

// Plain calls verify with a slot as it lies in a bucket, decrypted.
func (d *Packs) Plain(c pack.Chunk, slot []byte, verify func(c pack.Chunk, slot []byte) error) error {
	if d.coder == nil {
		return verify(c, slot)
	}
	buf := d.coder.Buffer(len(slot) + cipher.TagSize)
	defer d.coder.Done(buf)
	plain := append(buf, slot...)
	if err := pack.Decrypt(d.coder, c.Loc, plain); err != nil {
		return err
	}
	return verify(c, plain)
}

// plainly gives a verify that is told of slots as they lie in a bucket.
func (d *Packs) plainly(verify func(c pack.Chunk, slot []byte) error) func(c pack.Chunk, slot []byte) error {
	return func(c pack.Chunk, slot []byte) error { return d.Plain(c, slot, verify) }
}

// Bring fetches slots of chunks in distant packs before anybody reads them, in their order, and calls came with the
// numbers of those that may be read; see [nodecache.Cache.Bring]. verify is as for ReadSlots.
func (d *Packs) Bring(
	ctx context.Context, list []pack.Chunk, verify func(c pack.Chunk, slot []byte) error, came func(numbers []int),
) {
	objects := map[uint32]*nodecache.Object{}
	var wanted []nodecache.Wanted
	var of, unknown []int // numbers in list
	for i, c := range list {
		o := objects[c.Loc.Pack]
		if o == nil && d.source != nil {
			if p, ok := d.Pack(c.Loc.Pack); ok {
				o = &nodecache.Object{Name: p.Name, Size: p.Size, Verify: d.plainly(verify)}
				objects[c.Loc.Pack] = o
			}
		}
		if o == nil {
			unknown = append(unknown, i)
			continue
		}
		wanted, of = append(wanted, nodecache.Wanted{Object: o, Chunk: c}), append(of, i)
	}
	if len(unknown) > 0 {
		came(unknown) // reading them reports the error
	}
	if len(wanted) == 0 {
		return
	}
	d.source.Bring(ctx, wanted, func(numbers []int) {
		for i, n := range numbers {
			numbers[i] = of[n]
		}
		came(numbers)
	})
}

// ErrGone: the bucket has not the object any more.
var ErrGone = errors.New("it is gone from the bucket")

// unreachable is the error of what lies in a bucket and cannot be had now. It is no damage.
func unreachable(name object.Name, err error) error {
	if fault.ClassOf(err) == fault.NotFound {
		return &fault.Error{Class: fault.Unreachable, Op: "fetch", File: name.String(),
			Err:  fmt.Errorf("%w: %w", ErrGone, err),
			Hint: "it was removed from the remote store: remove it here, or sync it anew where it was dumped"}
	}
	return &fault.Error{Class: fault.Unreachable, Op: "fetch", File: name.String(), Err: err,
		Hint: "the checkpoint's contents lie in the store's bucket: see whether it can be reached from here"}
}
