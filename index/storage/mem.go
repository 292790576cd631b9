package storage

import (
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// memFree is what Mem says is free.
const memFree = 1 << 40

// Mem is a file system in memory that knows what was synced. The zero value is not usable: see NewMem.
type Mem struct {
	mu    sync.Mutex
	root  *memDir
	locks map[string]*memLock // by name
}

// memDir is a folder: what it holds, what it held when it was synced last, and what was done since, in order. Values
// are *memDir or *memFile.
type memDir struct {
	now, durable map[string]any
	since        []dirChange
}

// dirChange sets names of a folder; nil removes one. All of it survives a crash, or nothing.
type dirChange map[string]any

// memFile is a file: its content, the content that a crash cannot take, and what was done since, in order.
type memFile struct {
	now, durable content
	since        []change
}

func newDir() *memDir { return &memDir{now: map[string]any{}, durable: map[string]any{}} }

// NewMem makes a file system that holds the empty folder dir, and those above it, durably.
func NewMem(dir string) *Mem {
	m := &Mem{root: newDir(), locks: map[string]*memLock{}}
	d := m.root
	for _, part := range parts(dir) {
		sub := newDir()
		d.now[part], d.durable[part] = sub, sub
		d = sub
	}
	return m
}

func parts(name string) []string {
	return strings.FieldsFunc(path.Clean(name), func(r rune) bool { return r == '/' })
}

func fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// find gives what bears a name, nil if nothing does, and the folder that holds it. Call with mu held.
func (m *Mem) find(name string) (in *memDir, base string, node any, err error) {
	all := parts(name)
	if len(all) == 0 {
		return nil, "", m.root, nil
	}
	in = m.root
	for _, part := range all[:len(all)-1] {
		sub, ok := in.now[part]
		if !ok {
			return nil, "", nil, unix.ENOENT
		}
		if in, ok = sub.(*memDir); !ok {
			return nil, "", nil, unix.ENOTDIR
		}
	}
	base = all[len(all)-1]
	return in, base, in.now[base], nil
}

// change changes a folder. Call with mu held.
func (d *memDir) change(c dirChange) {
	c.apply(d.now)
	d.since = append(d.since, c)
}

func (c dirChange) apply(names map[string]any) {
	for name, node := range c {
		if node == nil {
			delete(names, name)
		} else {
			names[name] = node
		}
	}
}

// Mkdir is of Storage.
func (m *Mem) Mkdir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, base, node, err := m.find(name)
	if err == nil && node != nil {
		err = unix.EEXIST
	}
	if err != nil {
		return fail("mkdir", name, err)
	}
	in.change(dirChange{base: newDir()})
	return nil
}

// Rename is of Storage.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, a, node, err := m.find(from)
	if err == nil && node == nil {
		err = unix.ENOENT
	}
	if err != nil {
		return fail("rename", from, err)
	}
	into, b, old, err := m.find(to)
	switch {
	case err != nil:
	case into != in:
		err = unix.EXDEV
	case old != nil:
		if _, dir := old.(*memDir); dir {
			err = unix.EEXIST
		}
	}
	if err != nil {
		return fail("rename", to, err)
	}
	if a != b {
		in.change(dirChange{a: nil, b: node})
	}
	return nil
}

// Remove is of Storage.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	in, base, node, err := m.find(name)
	if err == nil && node == nil {
		err = unix.ENOENT
	}
	if d, ok := node.(*memDir); ok && len(d.now) > 0 {
		err = unix.ENOTEMPTY
	}
	if err != nil {
		return fail("remove", name, err)
	}
	in.change(dirChange{base: nil})
	return nil
}

// dir gives the folder of a name. Call with mu held.
func (m *Mem) dir(op, name string) (*memDir, error) {
	_, _, node, err := m.find(name)
	d, ok := node.(*memDir)
	switch {
	case err != nil:
	case node == nil:
		err = unix.ENOENT
	case !ok:
		err = unix.ENOTDIR
	}
	return d, fail(op, name, err)
}

// List is of Storage.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.dir("list", dir)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(d.now)), nil
}

// Stat is of Storage.
func (m *Mem) Stat(name string) (Info, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _, node, err := m.find(name)
	switch n := node.(type) {
	case *memDir:
		return Info{Dir: true}, nil
	case *memFile:
		return Info{Size: n.now.size, Disk: n.now.allocated(0, n.now.size)}, nil
	}
	if err == nil {
		err = unix.ENOENT
	}
	return Info{}, fail("stat", name, err)
}

// SyncDir is of Storage.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, err := m.dir("sync", dir)
	if err != nil {
		return err
	}
	d.durable, d.since = maps.Clone(d.now), nil
	return nil
}

// Free is of Storage.
func (m *Mem) Free(dir string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.dir("statfs", dir)
	return memFree, err
}

// Lock is of Storage. Nothing of a lock survives a crash.
func (m *Mem) Lock(name, holder string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = path.Clean(name)
	if l := m.locks[name]; l != nil {
		return nil, &Locked{Holder: l.holder}
	}
	in, base, node, err := m.find(name)
	if err != nil {
		return nil, fail("lock", name, err)
	}
	if node == nil {
		in.change(dirChange{base: &memFile{}})
	}
	m.locks[name] = &memLock{m: m, name: name, holder: holder, times: 1}
	return m.locks[name], nil
}

// LockShared is of Storage.
func (m *Mem) LockShared(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = path.Clean(name)
	_, _, node, err := m.find(name)
	if err == nil && node == nil {
		err = unix.ENOENT
	}
	if err != nil {
		return nil, fail("lock", name, err)
	}
	l := m.locks[name]
	switch {
	case l == nil:
		l = &memLock{m: m, name: name, holder: readers, shared: true}
		m.locks[name] = l
	case !l.shared:
		return nil, &Locked{Holder: l.holder}
	}
	l.times++
	return l, nil
}

// memLock is a lock that is held, by one or, if it is shared, several times.
type memLock struct {
	m            *Mem
	name, holder string
	shared       bool
	times        int
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.times--; l.times == 0 {
		delete(l.m.locks, l.name)
	}
	return nil
}
