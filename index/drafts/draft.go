package drafts

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/unsealed"
)

// CreateOptions of a new checkpoint.
type CreateOptions struct {
	Tags   []string
	Labels map[string]string
}

// Draft is a checkpoint being written, safe for concurrent use. It is invisible to Checkpoint and Latest until Seal.
type Draft struct {
	s      *Writer
	r      *roots.Root
	id     string
	name   string
	pins   *chunks.Pins
	told   *unsealed.Draft
	policy chunk.Policy

	mu       sync.Mutex
	nodes    map[string]*node // by path
	next     uint32
	parent   string        // id
	ended    bool          // sealed or aborted
	tried    bool          // a Seal failed: journals may hold its root record
	untagged []*roots.Root // checkpoints that a failed Seal may have taken tags from
	losses   int           // of the store when it was begun

	// writes is held for reading by every write to a file, and for writing by Seal: so every acknowledged write is
	// sealed.
	writes sync.RWMutex
}

// node is a file, directory or symlink of a draft. kind and target never change.
type node struct {
	d      *Draft
	kind   fs.FileMode // type bits
	target string

	mu      sync.Mutex
	number  uint32 // the segments of its content are kept under
	perm    fs.FileMode
	mtime   time.Time
	content *content // of a regular file
	handles int
	removed bool // from its draft: the last handle discards it
	ended   bool
	counted int // handles that are open files of the sealed checkpoint
}

// Create opens a new checkpoint for writing. Class Exists when the name is taken, by an incomplete one too, Invalid
// for names that ValidName refuses.
func (s *Writer) Create(_ context.Context, name string, o CreateOptions) (*Draft, error) {
	if err := s.chunks.MayWrite("create checkpoint"); err != nil {
		return nil, err
	}
	const op = "create checkpoint"
	for _, n := range append([]string{name}, o.Tags...) {
		if err := roots.ValidName(n); err != nil {
			return nil, err
		}
	}
	if err := roots.ValidLabels(o.Labels); err != nil {
		return nil, err
	}
	pb := &manifestpb.Checkpoint{Id: manifest.NewID(), Name: name, CreatedNs: time.Now().UnixNano(),
		Tags: slices.Compact(slices.Sorted(slices.Values(o.Tags))), Labels: maps.Clone(o.Labels)}
	payload, err := manifest.EncodeCheckpoint(pb)
	if err != nil {
		return nil, fault.Classify(op, err)
	}
	d := &Draft{s: s, r: roots.NewRoot(pb), id: pb.Id, name: name, nodes: map[string]*node{}, policy: s.o.Policy}
	d.losses, _ = s.chunks.LossesNow()
	d.pins = s.chunks.NewPins()
	if err := s.roots.Begin(op, d.r, d); err != nil {
		d.pins.Release()
		return nil, err
	}
	if err := s.chunks.PutLocal([]chunks.Put{{Key: manifest.RootKey(pb.Id), Payload: payload}}); err != nil {
		_ = d.Abort() // it fails of the same, and gc takes what it leaves
		return nil, err
	}
	d.told = s.o.Unsealed.Begin(d.id, name)
	s.roots.Announce(name)
	return d, nil
}

// ID gives the id the checkpoint will have.
func (d *Draft) ID() string { return d.id }

// Name gives the name the checkpoint will have.
func (d *Draft) Name() string { return d.name }

func (d *Draft) fail(class fault.Class, p string, why string) error {
	return &fault.Error{Class: class, Op: "write", Checkpoint: d.name, File: p, Err: errors.New(why)}
}

// at says what failed where; p is "" where it was no file.
func (d *Draft) at(op, p string, err error) error { return fault.At(op, d.name, p, err) }

func (d *Draft) over(p string) error { return d.fail(fault.ReadOnly, p, "the checkpoint is sealed") }

// SetParent records that this checkpoint needs another one (Class NotFound if that is not sealed); "" removes that.
func (d *Draft) SetParent(ref string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return d.over("")
	}
	id, err := d.s.roots.SetParent(d.r, ref)
	if err == nil {
		d.parent = id
	}
	return err
}

// enter checks that p can be made in d. Call with d.mu held.
func (d *Draft) enter(p string) error {
	if d.ended {
		return d.over(p)
	}
	if !manifest.ValidPath(p) {
		return d.fail(fault.Invalid, p, "not a clean relative path that a file system takes")
	}
	if len(d.nodes) >= manifest.MaxEntries {
		return d.fail(fault.NoSpace, p, "a checkpoint holds no more files")
	}
	if dir := path.Dir(p); dir != "." {
		parent := d.nodes[dir]
		if parent == nil {
			return d.fail(fault.NotFound, dir, "no such directory")
		}
		if parent.kind != fs.ModeDir {
			return d.fail(fault.Invalid, dir, "not a directory")
		}
	}
	if d.nodes[p] != nil {
		return d.fail(fault.Exists, p, "it exists")
	}
	return nil
}

func (d *Draft) make(p string, kind, perm fs.FileMode, target string) (*node, error) {
	if err := d.enter(p); err != nil {
		return nil, err
	}
	n := &node{d: d, kind: kind, target: target, number: d.next, perm: perm.Perm(), mtime: time.Now()}
	d.next++
	if kind == 0 {
		n.content = newContent(d, n.number, chunk.HeaderLen(p))
	}
	d.nodes[p] = n
	return n, nil
}

// Create makes a new empty regular file and opens it; Class Exists if there is one. Parent directories must exist
// (Class NotFound).
func (d *Draft) Create(p string, perm fs.FileMode) (*DraftFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.make(p, 0, perm, "")
	if err != nil {
		return nil, err
	}
	return n.open(p), nil
}

// Open opens an existing regular file for reading and writing.
func (d *Draft) Open(p string) (*DraftFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[p]
	switch {
	case d.ended:
		return nil, d.over(p)
	case n == nil:
		return nil, d.fail(fault.NotFound, p, "no such file")
	case n.kind != 0:
		return nil, d.fail(fault.Invalid, p, "not a regular file")
	}
	return n.open(p), nil
}

// Mkdir makes a directory.
func (d *Draft) Mkdir(p string, perm fs.FileMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.make(p, fs.ModeDir, perm, "")
	return err
}

// Symlink makes a symlink at p.
func (d *Draft) Symlink(target, p string) error {
	if !manifest.ValidTarget(target) {
		return d.fail(fault.Invalid, p, "not a target that a symlink can have")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.make(p, fs.ModeSymlink, 0o777, target)
	return err
}

// Remove removes a file, symlink or empty directory. Open files live on until closed.
func (d *Draft) Remove(p string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[p]
	switch {
	case d.ended:
		return d.over(p)
	case n == nil:
		return d.fail(fault.NotFound, p, "no such file")
	case n.kind == fs.ModeDir && len(d.below(p)) > 0:
		return d.fail(fault.InUse, p, "the directory is not empty")
	}
	delete(d.nodes, p)
	n.remove()
	return nil
}

// below gives the paths under directory p. Call with mu held.
func (d *Draft) below(p string) []string {
	var out []string
	for q := range d.nodes {
		if strings.HasPrefix(q, p+"/") {
			out = append(out, q)
		}
	}
	return out
}

// Rename moves a file, or a directory with all below it; it replaces a file at to.
func (d *Draft) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, old := d.nodes[from], d.nodes[to]
	switch {
	case d.ended:
		return d.over(from)
	case n == nil:
		return d.fail(fault.NotFound, from, "no such file")
	case from == to:
		return nil
	case strings.HasPrefix(to, from+"/"):
		return d.fail(fault.Invalid, to, "a directory cannot move below itself")
	case old != nil && (old.kind == fs.ModeDir || n.kind == fs.ModeDir):
		return d.fail(fault.Exists, to, "it exists")
	}
	delete(d.nodes, to)
	if err := d.enter(to); err != nil {
		if old != nil {
			d.nodes[to] = old
		}
		return err
	}
	below := d.below(from)
	for _, q := range below {
		if !manifest.ValidPath(to + strings.TrimPrefix(q, from)) {
			return d.fail(fault.Invalid, to, "the path of a file below it would be too long")
		}
	}
	for _, q := range below {
		d.nodes[to+strings.TrimPrefix(q, from)] = d.nodes[q]
		delete(d.nodes, q)
	}
	d.nodes[to] = n
	delete(d.nodes, from)
	if old != nil {
		old.remove()
	}
	return nil
}

// Attr are changes of metadata; nil pointers change nothing.
type Attr struct {
	Perm    *fs.FileMode
	ModTime *int64 // ns since the epoch
}

// SetAttr changes metadata.
func (d *Draft) SetAttr(p string, a Attr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[p]
	if d.ended {
		return d.over(p)
	}
	if n == nil {
		return d.fail(fault.NotFound, p, "no such file")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if a.Perm != nil {
		n.perm = a.Perm.Perm()
	}
	if a.ModTime != nil {
		n.mtime = time.Unix(0, *a.ModTime)
	}
	return nil
}

// Stat gives one entry; path "." is the root directory.
func (d *Draft) Stat(p string) (reading.FileInfo, error) {
	if p == "." {
		return reading.FileInfo{Path: ".", Mode: fs.ModeDir | 0o755}, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[p]
	if n == nil {
		return reading.FileInfo{}, d.fail(fault.NotFound, p, "no such file")
	}
	return n.info(p), nil
}

// ReadDir gives what is in a directory, sorted.
func (d *Draft) ReadDir(p string) ([]reading.FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.nodes[p]; p != "." && (n == nil || n.kind != fs.ModeDir) {
		return nil, d.fail(fault.NotFound, p, "no such directory")
	}
	var out []reading.FileInfo
	for q, n := range d.nodes {
		if path.Dir(q) == p {
			out = append(out, n.info(q))
		}
	}
	slices.SortFunc(out, func(a, b reading.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// Abort gives the checkpoint up and removes its record; writes to files that are open fail from then on, Class
// ReadOnly. After Seal it does nothing.
func (d *Draft) Abort() error {
	d.mu.Lock()
	if d.ended {
		d.mu.Unlock()
		return nil
	}
	d.ended = true
	for _, n := range d.nodes {
		n.end(false)
		n.remove()
	}
	d.mu.Unlock()
	s := d.s
	err := s.roots.Abort(d.r, d.tried, d.untagged)
	d.pins.Release()
	s.o.Unsealed.End(d.id)
	s.roots.Announce(d.name)
	return err
}
