package fs

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gpucr/gpucr-fs/index"
)

// catalog knows which checkpoints can be seen, and keeps one image for each that was looked at.
type catalog struct {
	store         *index.Store
	gen           atomic.Uint64 // counts changes of the set of checkpoints; starts at 1
	clock         atomic.Int64  // counts uses of images
	tidyRequested chan struct{} // holds one item when there may be something to tidy up

	mu      sync.Mutex
	seen    uint64                // gen at which infos was read
	infos   map[string]index.Info // sealed checkpoints
	images  map[string]*image     // drafts of this mount, and sealed ones that were looked at
	bases   map[uint64]string     // inode base → checkpoint ID
	drafts  uint64                // made so far
	labels  map[string]string     // of drafts; never changes
	removed []*image              // dropped from images since the last drainRemoved
	dumps   map[string]bool       // by ID of a sealed checkpoint: whether it has an inventory, once that was asked
}

func newCatalog(store *index.Store, labels map[string]string) *catalog {
	c := &catalog{
		store:         store,
		labels:        labels,
		tidyRequested: make(chan struct{}, 1),
		images:        map[string]*image{},
		bases:         map[uint64]string{},
		dumps:         map[string]bool{},
	}
	c.gen.Store(1)
	return c
}

// changed takes the store's notice that a checkpoint came or went.
func (c *catalog) changed(string) {
	c.gen.Add(1)
	c.requestTidy()
}

// requestTidy wakes the janitor.
func (c *catalog) requestTidy() {
	select {
	case c.tidyRequested <- struct{}{}:
	default:
	}
}

func (c *catalog) refreshLocked() error {
	gen := c.gen.Load()
	if c.seen == gen {
		return nil
	}
	all, err := c.store.Names(context.Background())
	if err != nil {
		return err
	}
	c.infos = make(map[string]index.Info, len(all))
	for _, info := range all {
		if info.State == index.Sealed {
			c.infos[info.Name] = info
		}
	}
	for name, img := range c.images {
		// The parent link shows a name, and its checkpoint may have been given another.
		if info, ok := c.infos[name]; img.openDraft() == nil &&
			(!ok || img.ident() != info.ID || img.parentWas() != info.Parent) {
			c.dropLocked(img)
		}
	}
	known := map[string]bool{}
	for _, info := range c.infos {
		if is, ok := c.dumps[info.ID]; ok {
			known[info.ID] = is
		}
	}
	c.dumps = known
	c.seen = gen
	return nil
}

// dropLocked takes out an image whose checkpoint is gone.
func (c *catalog) dropLocked(img *image) {
	if c.images[img.name] == img {
		delete(c.images, img.name)
		c.removed = append(c.removed, img)
	}
}

// drainRemoved gives the images whose checkpoint is gone, each once.
func (c *catalog) drainRemoved() []*image {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.refreshLocked() // the next lookup reports the error
	removed := c.removed
	c.removed = nil
	return removed
}

// names gives all that .checkpoints shows, sorted: sealed checkpoints and this mount's drafts.
func (c *catalog) names() ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refreshLocked(); err != nil {
		return nil, err
	}
	out := make([]string, 0, len(c.infos)+1)
	for name := range c.infos {
		out = append(out, name)
	}
	for name, img := range c.images {
		if _, sealed := c.infos[name]; !sealed && img.openDraft() != nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// image gives the checkpoint of exactly this name: a draft of this mount or a sealed one. Class NotFound.
func (c *catalog) image(name string) (*image, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.imageLocked(name)
}

func (c *catalog) imageLocked(name string) (*image, error) {
	img := c.images[name]
	if img != nil && img.openDraft() != nil {
		return img, nil
	}
	if err := c.refreshLocked(); err != nil {
		return nil, err
	}
	info, ok := c.infos[name]
	if !ok {
		return nil, &index.Error{
			Class:      index.NotFound,
			Op:         "look up",
			Checkpoint: name,
			Err:        errors.New("no such checkpoint"),
		}
	}
	if img != nil { // refreshLocked leaves no other than info's
		return img, nil
	}
	img = &image{name: name, cat: c, store: c.store, id: info.ID, parent: info.Parent, base: c.baseLocked(info.ID)}
	c.images[name] = img
	return img, nil
}

// baseLocked gives checkpoint id its inode base: its ID's hash, or the next free number when another has that.
func (c *catalog) baseLocked(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	for b := h.Sum64() & inoBaseMask; ; b = (b + 1) & inoBaseMask {
		if old, taken := c.bases[b]; b != 0 && (!taken || old == id) {
			c.bases[b] = id
			return b << inoIdxBits
		}
	}
}

// latest gives the checkpoint sealed last, and nil where there is none. What has no inventory, as stores made by
// earlier versions may hold, is passed over: it can be read below .checkpoints, but nothing can be restored from it.
// gen is the state of the catalog the answer is at least as new as.
func (c *catalog) latest() (img *image, gen uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gen = c.gen.Load()
	if err := c.refreshLocked(); err != nil {
		return nil, gen, err
	}
	all := slices.Collect(maps.Values(c.infos))
	slices.SortFunc(all, func(a, b index.Info) int { return b.SealedAt.Compare(a.SealedAt) })
	for _, info := range all {
		ok, err := c.isDumpLocked(info)
		if err != nil {
			return nil, gen, err
		}
		if ok {
			img, err = c.imageLocked(info.Name)
			return img, gen, err
		}
	}
	return nil, gen, nil
}

// isDumpLocked tells whether a checkpoint has an inventory. It reads each checkpoint's table once.
func (c *catalog) isDumpLocked(info index.Info) (bool, error) {
	if is, known := c.dumps[info.ID]; known {
		return is, nil
	}
	cp, err := c.store.Checkpoint(info.Name)
	if err != nil {
		return false, err
	}
	err = index.NeedInventory("look up", info.Name, cp.Stat)
	if err != nil && index.ClassOf(err) != index.Invalid {
		return false, err
	}
	c.dumps[info.ID] = err == nil
	return err == nil, nil
}

// create makes a draft.
func (c *catalog) create(ctx context.Context, name string, tags []string) (*image, error) {
	d, err := c.store.Create(ctx, name, index.CreateOptions{Tags: tags, Labels: c.labels})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.images[name]; old != nil {
		c.dropLocked(old)
	}
	c.drafts++
	img := &image{
		name:    name,
		cat:     c,
		store:   c.store,
		draft:   d,
		base:    inoDraft | c.drafts<<inoIdxBits,
		entries: map[string]*entry{},
		next:    idxFirst,
	}
	c.images[name] = img
	return img, nil
}

// warm gives the sealed images that the kernel may know files of, the one used last in front.
func (c *catalog) warm() []*image {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*image
	for _, img := range c.images {
		if img.used.Load() > 0 && img.openDraft() == nil {
			out = append(out, img)
		}
	}
	slices.SortFunc(out, func(a, b *image) int { return cmp.Compare(b.used.Load(), a.used.Load()) })
	return out
}

// open gives the drafts that are neither sealed nor aborted, by name.
func (c *catalog) open() []*image {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*image
	for _, img := range c.images {
		if img.openDraft() != nil {
			out = append(out, img)
		}
	}
	slices.SortFunc(out, func(a, b *image) int { return strings.Compare(a.name, b.name) })
	return out
}

// seal makes a draft immutable. Sealing one twice is no error.
func (c *catalog) seal(ctx context.Context, img *image) (index.Info, error) {
	img.sealing.Lock()
	defer img.sealing.Unlock()
	d := img.openDraft()
	if d == nil {
		cp, err := img.checkpoint()
		if err != nil {
			return index.Info{}, err
		}
		return cp.Info(), nil
	}
	info, err := d.Seal(ctx)
	if err != nil {
		return index.Info{}, err
	}
	c.ended(img, info.ID)
	return info, img.renumber()
}

// ended turns a draft into the sealed checkpoint id, or with "" into nothing. refreshLocked compares a list of the
// store with the images, and must not see the one from before and the other from after.
func (c *catalog) ended(img *image, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	img.mu.Lock()
	img.id, img.draft = id, nil
	img.mu.Unlock()
	if id == "" {
		c.dropLocked(img)
	}
	c.gen.Add(1)
}

// abort gives a draft up. EROFS once it is sealed.
func (c *catalog) abort(img *image) error {
	img.sealing.Lock()
	defer img.sealing.Unlock()
	d := img.openDraft()
	if d == nil {
		return &index.Error{
			Class:      index.ReadOnly,
			Op:         "abort",
			Checkpoint: img.name,
			Err:        errors.New("the checkpoint is sealed"),
		}
	}
	if err := d.Abort(); err != nil {
		return err
	}
	c.ended(img, "")
	return nil
}
