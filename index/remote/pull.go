package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/remote/repack"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// Entry is a checkpoint of the remote store.
type Entry struct {
	Name string `json:"name"`
	Meta
	Packs  int   `json:"packs"`
	Stored int64 `json:"stored"` // bytes of the packs that it needs, shared ones included
}

// Find gives a checkpoint of the remote store by its name. Class NotFound.
func (s *Store) Find(ctx context.Context, name string) (Entry, error) {
	k, err := s.find(ctx, name)
	if err != nil {
		return Entry{}, Classify("find checkpoint", err)
	}
	return s.entryOf(k.Record)
}

// find finds a checkpoint by its name, and nothing else that has a root.
func (s *Store) find(ctx context.Context, name string) (*catalog.Checkpoint, error) {
	if catalog.IsBeside(name) {
		return nil, fmt.Errorf("%s: %w", name, catalog.ErrNotFound)
	}
	return s.c.Find(ctx, name)
}

// rootPurpose is what the meta of a root is encrypted for.
func rootPurpose(name string) string { return cipher.ForRoot + " " + name }

func entryError(name string, err error) error {
	return &fault.Error{Class: fault.Corrupt, Op: "read root", Checkpoint: name, Err: err}
}

// metaOf gives the meta of a root, decrypted.
func (s *Store) metaOf(r catalog.Record) ([]byte, error) {
	if s.config.Ring == nil {
		return r.Meta, nil
	}
	meta, err := s.o.Cipher.Open(rootPurpose(r.Name), r.Meta)
	if err != nil {
		return nil, entryError(r.Name, err)
	}
	return meta, nil
}

func (s *Store) entryOf(r catalog.Record) (Entry, error) {
	e := Entry{Name: r.Name, Packs: len(r.Packs)}
	meta, err := s.metaOf(r)
	if err != nil {
		return Entry{}, err
	}
	if err := json.Unmarshal(meta, &e.Meta); err != nil {
		return Entry{}, entryError(r.Name, err)
	}
	for _, p := range r.Packs {
		if e.Stored += p.Size; e.Stored < 0 {
			return Entry{}, entryError(r.Name, errors.New("packs of impossible lengths"))
		}
	}
	if e.Parent != "" && !manifest.ValidName(e.Parent) {
		return Entry{}, entryError(r.Name, fmt.Errorf("parent %.40q", e.Parent))
	}
	for k, v := range e.Labels {
		if !manifest.ValidLabelKey(k) || !manifest.ValidLabelValue(v) {
			return Entry{}, entryError(r.Name, fmt.Errorf("label %.80q", k))
		}
	}
	return e, nil
}

// parentStands refuses, with InUse, a checkpoint whose parent does not stand in the remote store.
func (s *Store) parentStands(ctx context.Context, e Entry) error {
	if e.ParentID == "" {
		return nil
	}
	of, err := s.Find(ctx, e.Parent)
	if fault.ClassOf(err) == fault.NotFound || err == nil && of.ID != e.ParentID {
		err = &fault.Error{Class: fault.InUse, Checkpoint: e.Name, Hint: "sync it again from a store that has both; " +
			"if that does not help, first remove it from the bucket with: gpucr-fs rm --remote STORE " + e.Name,
			Err: fmt.Errorf("its parent %s (id %.12s) is not in the remote store", e.Parent, e.ParentID)}
	}
	return err
}

// List gives the checkpoints of the remote store, in the order of their names.
func (s *Store) List(ctx context.Context) ([]Entry, error) {
	out, _, err := s.ListWhole(ctx)
	return out, err
}

// ListWhole is List. unread tells of each root that cannot be understood: what is not in out may stand all the same.
func (s *Store) ListWhole(ctx context.Context) (out []Entry, unread []string, err error) {
	for r, err := range s.c.All(ctx) {
		if errors.Is(err, catalog.ErrCorrupt) || errors.Is(err, catalog.ErrVersion) {
			s.o.Logger.Error("a root of the remote store cannot be understood", "err", err)
			unread = append(unread, err.Error())
			continue
		}
		if err != nil {
			return nil, unread, Classify("list remote store", err)
		}
		if r.State != catalog.Sealed || catalog.IsBeside(r.Name) {
			continue
		}
		e, err := s.entryOf(r)
		if err != nil {
			s.o.Logger.Error("a checkpoint of the remote store cannot be understood", "checkpoint", r.Name, "err", err)
			unread = append(unread, err.Error())
			continue
		}
		out = append(out, e)
	}
	return out, unread, nil
}

// Pull makes a checkpoint of the remote store one of a node, under the name as, and before it those that it needs,
// under their own. Class NotFound, Exists.
func (s *Store) Pull(ctx context.Context, n Node, name, as string) (roots.Info, error) {
	return s.pull(ctx, n, name, as, 0)
}

// maxParents bounds how many checkpoints one needs, one the next: CRIU's incremental dumps.
const maxParents = 100

func (s *Store) pull(ctx context.Context, n Node, name, as string, depth int) (info roots.Info, err error) {
	err = foundAnew(func() error {
		info, err = s.pullFound(ctx, n, name, as, depth)
		return err
	})
	return info, err
}

// mostMoves is how often a checkpoint is found anew that is given other packs while it is read.
const mostMoves = 5

// foundAnew finds and reads a checkpoint, again where it was given other packs meanwhile.
func foundAnew(read func() error) (err error) {
	for range mostMoves {
		if err = read(); !errors.Is(err, catalog.ErrMoved) {
			break
		}
	}
	return err
}

func (s *Store) pullFound(ctx context.Context, n Node, name, as string, depth int) (roots.Info, error) {
	fail := func(err error) (roots.Info, error) { return roots.Info{}, named("pull", name, err) }
	k, err := s.find(ctx, name)
	if err != nil {
		return fail(err)
	}
	e, err := s.entryOf(k.Record)
	if err != nil {
		return roots.Info{}, err
	}
	if e.ParentID != "" {
		_, err := n.Info(e.ParentID)
		if fault.ClassOf(err) == fault.NotFound && depth < maxParents {
			if err = s.parentStands(ctx, e); err == nil {
				_, err = s.pull(ctx, n, e.Parent, e.Parent, depth+1)
			}
		}
		if err != nil {
			return fail(err)
		}
	}
	take := s.learnedSoon(ctx, e.ID)
	defer take(n)
	list, err := listOf(ctx, k, e)
	if err != nil {
		return fail(err)
	}
	info, err := n.Pull(ctx, as, s.id, list)
	if err != nil {
		return fail(err)
	}
	return info, nil
}

// listOf reads the list of a checkpoint.
func listOf(ctx context.Context, k *catalog.Checkpoint, e Entry) (object.Source, error) {
	last, err := lastOf(k.Record, e)
	if err != nil {
		return object.Source{}, err
	}
	r := io.NewSectionReader(&packReader{ctx: ctx, k: k, p: last}, 0, last.Size)
	return object.Source{Reader: bufio.NewReaderSize(r, int(min(last.Size+1, readBytes))),
		First: firstOf(k.Record, e), Lists: repack.Listed(k.Packs)}, nil
}

// firstOf gives the key of the first record in a root's list: that of the checkpoint, or of its hot set.
func firstOf(r catalog.Record, e Entry) string {
	if catalog.IsBeside(r.Name) {
		return manifest.HotKey(e.ID)
	}
	return manifest.RootKey(e.ID)
}

// lastOf gives the pack that is the list of a checkpoint.
func lastOf(r catalog.Record, e Entry) (catalog.Pack, error) {
	last := len(r.Packs) - 1
	if last < 0 || r.Packs[last].ID != e.List {
		return catalog.Pack{}, fmt.Errorf("%w: the root does not end with its list", catalog.ErrCorrupt)
	}
	return r.Packs[last], nil
}

// readBytes is how much of a list one request reads.
const readBytes = 8 << 20

// packReader reads a pack of a checkpoint.
type packReader struct {
	ctx context.Context
	k   *catalog.Checkpoint
	p   catalog.Pack
}

func (r *packReader) ReadAt(b []byte, off int64) (int, error) {
	n, err := r.k.ReadAt(r.ctx, r.p, b, off)
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return n, err
}
