package index

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

func clonePB(pb *manifestpb.Checkpoint) *manifestpb.Checkpoint { return proto.CloneOf(pb) }

// CreateOptions of a new checkpoint.
type CreateOptions struct {
	Tags   []string
	Labels map[string]string
}

// Draft is a checkpoint being written, safe for concurrent use. It is invisible to Checkpoint and Latest until Seal.
type Draft struct {
	s      *Store
	r      *root
	id     string
	name   string
	pins   *chunks.Pins
	policy chunk.Policy

	mu     sync.Mutex
	nodes  map[string]*node // by path
	next   uint32
	parent string  // id
	ended  bool    // sealed or aborted
	tried  bool    // a Seal failed: journals may hold its root record
	took   []*root // whose tags that Seal may have taken
	losses int     // of the store when it was begun

	// writes is held for reading by every write to a file, for writing by Seal: what is acknowledged is sealed.
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
	sealed  bool
	counted int // handles that are open files of the sealed checkpoint
}

// Create opens a new checkpoint for writing. Class Exists when the name is taken, by an incomplete one too, Invalid for names that ValidName refuses.
func (s *Store) Create(_ context.Context, name string, o CreateOptions) (*Draft, error) {
	if err := s.chunks.MayWrite("create checkpoint"); err != nil {
		return nil, err
	}
	const op = "create checkpoint"
	for _, n := range append([]string{name}, o.Tags...) {
		if err := ValidName(n); err != nil {
			return nil, err
		}
	}
	if err := validLabels(o.Labels); err != nil {
		return nil, err
	}
	pb := &manifestpb.Checkpoint{Id: newID(), Name: name, CreatedNs: time.Now().UnixNano(), Tags: slices.Clone(o.Tags), Labels: maps.Clone(o.Labels)}
	payload, err := manifest.EncodeCheckpoint(pb)
	if err != nil {
		return nil, fault.Classify(op, err)
	}
	d := &Draft{s: s, r: newRoot(pb), id: pb.Id, name: name, nodes: map[string]*node{}, policy: policies[s.o.Compression]}
	d.r.writing = true
	d.losses, _ = s.chunks.LossesNow()
	d.pins = s.chunks.NewPins()
	s.mu.Lock()
	if err := s.mayName(op, name, o.Tags); err != nil {
		s.mu.Unlock()
		d.pins.Release()
		return nil, err
	}
	s.names[name] = d.r
	s.roots[pb.Id] = d.r
	s.drafts[name] = d
	s.mu.Unlock()
	if err := s.chunks.PutLocal([]chunks.Put{{Key: manifest.RootKey(pb.Id), Payload: payload}}); err != nil {
		_ = d.Abort() // it fails of the same, and gc takes what it leaves
		return nil, err
	}
	s.announce(name)
	return d, nil
}

// mayName refuses a name that is taken, or that some checkpoint or draft has as a tag, and tags that are names: what a
// word means would depend on who asks. Call with mu held.
func (s *Store) mayName(op, name string, tags []string) error {
	if name == s.coming {
		return &fault.Error{Class: fault.Exists, Op: op, Checkpoint: name, Err: errors.New("one is just being given that name"), Hint: "choose another name"}
	}
	if old := s.names[name]; old != nil {
		if old.removing {
			return &fault.Error{Class: fault.InUse, Op: op, Checkpoint: name, Err: errors.New("one of that name is just being removed"), Hint: "try again"}
		}
		return taken(op, name, s.info(old).State)
	}
	for _, t := range tags {
		if t == name || s.names[t] != nil {
			return nameNotTag(op, t)
		}
	}
	for _, r := range s.names {
		if slices.Contains(r.pb.Tags, name) {
			return &fault.Error{Class: fault.Exists, Op: op, Checkpoint: name, Err: fmt.Errorf("that is a tag of checkpoint %s", r.name()),
				Hint: "choose another name, or take the tag off: gpucr-fs tag STORE " + r.name() + " --remove " + name}
		}
	}
	return nil
}

func nameNotTag(op, tag string) error {
	return &fault.Error{Class: fault.Exists, Op: op, Err: fmt.Errorf("%q is the name of a checkpoint", tag), Hint: "choose another tag"}
}

func taken(op, name string, state State) error {
	e := &fault.Error{Class: fault.Exists, Op: op, Checkpoint: name, Err: errors.New("there is one of that name"), Hint: "choose another name, or remove it: gpucr-fs rm"}
	if state == Incomplete {
		e.Err = errors.New("an incomplete one of that name was left by a writer that died")
		e.Hint = "remove it with gpucr-fs rm or gc, then try again"
	}
	return e
}

// Name gives the name the checkpoint will have.
func (d *Draft) Name() string { return d.name }

func (d *Draft) fail(class fault.Class, p string, why string) error {
	return &fault.Error{Class: class, Op: "write", Checkpoint: d.name, File: p, Err: errors.New(why)}
}

func (d *Draft) over(p string) error { return d.fail(fault.ReadOnly, p, "the checkpoint is sealed") }

// SetParent records that this checkpoint needs another one (Class NotFound if that is not sealed); "" takes it back.
func (d *Draft) SetParent(ref string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return d.over("")
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	id := ""
	if ref != "" {
		p, err := d.s.sealed("set parent", ref)
		if err != nil {
			return err
		}
		id = p.id
	}
	d.parent = id
	d.r.pb = clonePB(d.r.pb)
	d.r.pb.ParentId = id
	return nil
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
		n.content = newContent(d, n.number, headerLen(p))
	}
	d.nodes[p] = n
	return n, nil
}

// headerLen is where the pages of a file begin. CRIU's amdgpu plugin writes an 8-byte payload size in front of raw pages; a cut behind it keeps them aligned, so that they dedupe
// with the same pages elsewhere (plugins/amdgpu/amdgpu_plugin_util.c, write_img_file).
func headerLen(p string) int64 {
	if base := path.Base(p); strings.HasPrefix(base, "amdgpu-pages-") || strings.HasPrefix(base, "amdgpu-drm-pages-") {
		return 8
	}
	return 0
}

// Create makes a new empty regular file and opens it; Class Exists if there is one. Parent directories must exist (Class NotFound).
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
func (d *Draft) Stat(p string) (FileInfo, error) {
	if p == "." {
		return FileInfo{Path: ".", Mode: fs.ModeDir | 0o755}, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[p]
	if n == nil {
		return FileInfo{}, d.fail(fault.NotFound, p, "no such file")
	}
	return n.info(p), nil
}

// ReadDir gives what is in a directory, sorted.
func (d *Draft) ReadDir(p string) ([]FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.nodes[p]; p != "." && (n == nil || n.kind != fs.ModeDir) {
		return nil, d.fail(fault.NotFound, p, "no such directory")
	}
	var out []FileInfo
	for q, n := range d.nodes {
		if path.Dir(q) == p {
			out = append(out, n.info(q))
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Path < out[j].Path })
	return out, nil
}

// Abort gives the checkpoint up and removes its record; writes to files that are open fail from then on, Class ReadOnly. After Seal it does nothing.
func (d *Draft) Abort() error {
	d.mu.Lock()
	if d.ended {
		d.mu.Unlock()
		return nil
	}
	d.ended = true
	for _, n := range d.nodes {
		n.seal(false)
		n.remove()
	}
	d.mu.Unlock()
	s := d.s
	s.mu.Lock()
	delete(s.names, d.name)
	delete(s.drafts, d.name)
	delete(s.roots, d.id)
	s.mu.Unlock()
	var err error
	if d.tried {
		err = s.commitAbort(d)
	} else {
		err = s.chunks.PutLocal([]chunks.Put{{Key: manifest.RootKey(d.id)}})
	}
	err = errors.Join(err, s.deleteBody(d.id))
	d.pins.Release()
	s.announce(d.name)
	return err
}

// commitAbort takes back what a Seal that failed may have left in the journals.
func (s *Store) commitAbort(d *Draft) error {
	s.updateMu.Lock()
	defer s.updateMu.Unlock()
	changed := map[*root]*manifestpb.Checkpoint{}
	s.mu.Lock()
	for _, o := range d.took {
		if s.roots[o.id] == o && !o.removed {
			changed[o] = o.pb
		}
	}
	s.mu.Unlock()
	puts, err := rootPuts(changed)
	return errors.Join(err, s.chunks.Commit(append(puts, chunks.Put{Key: manifest.RootKey(d.id)})))
}
