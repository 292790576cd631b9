package archive

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// link is a symbolic link that waits for the end of the import.
type link struct{ path, target string }

// builder puts checked members into a tree. It is the only way from a source to a draft.
//
// mu guards all fields below it; files are written outside it.
type builder struct {
	t tree
	o ImportOptions

	mu    sync.Mutex
	dirs  map[string]*time.Time // every directory, with the time it is to show; nil where the source does not say
	links []link
	count int
	bytes int64 // sum of announced file sizes
	res   Result

	done  int64 // bytes moved, for Progress
	total int64
}

func newBuilder(t tree, o ImportOptions) *builder {
	return &builder{t: t, o: o, dirs: map[string]*time.Time{".": nil}}
}

func (b *builder) countEntry(p string) error {
	if b.count++; b.count > b.o.MaxFiles {
		return refuse(p, "raise --max-files if you trust the source", "more than %d files", b.o.MaxFiles)
	}
	return nil
}

// countBytes books the announced size of a file.
func (b *builder) countBytes(p string, size int64) error {
	if size < 0 || size > b.o.MaxBytes-b.bytes {
		return refuse(
			p, "raise --max-bytes if you trust the source", "the files are larger than %d bytes together",
			b.o.MaxBytes,
		)
	}
	b.bytes += size
	return nil
}

// mkdirs makes the directories that lead to p, where the source did not list them.
func (b *builder) mkdirs(p string) error {
	if _, ok := b.dirs[p]; ok {
		return nil
	}
	if err := b.mkdirs(path.Dir(p)); err != nil {
		return err
	}
	if err := b.countEntry(p); err != nil {
		return err
	}
	if err := b.t.Mkdir(p, 0o755); err != nil {
		return memberError(p, err)
	}
	b.dirs[p] = nil
	b.res.Directories++
	return nil
}

func (b *builder) dir(p string, perm fs.FileMode, mtime time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.mkdirs(p); err != nil {
		return err
	}
	if p == "." {
		return nil // the root of a checkpoint keeps its own mode and time
	}
	b.dirs[p] = &mtime
	perm = perm.Perm()
	return b.t.SetAttr(p, index.Attr{Perm: &perm})
}

// create opens a new regular file of the announced size.
func (b *builder) create(p string, perm fs.FileMode, size int64) (file, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.countEntry(p); err != nil {
		return nil, err
	}
	if err := b.countBytes(p, size); err != nil {
		return nil, err
	}
	if _, ok := b.dirs[p]; ok {
		return nil, refuse(p, "", "appears as a directory and as a file")
	}
	if err := b.mkdirs(path.Dir(p)); err != nil {
		return nil, err
	}
	f, err := b.t.create(p, perm.Perm())
	if err != nil {
		return nil, memberError(p, err)
	}
	b.res.Checkpoint.Files++
	return f, nil
}

// finish closes a written file and gives it its time.
func (b *builder) finish(p string, f file, mtime time.Time) error {
	if err := f.Close(); err != nil {
		return err
	}
	return b.setTime(p, mtime)
}

func (b *builder) setTime(p string, mtime time.Time) error {
	ns, ok := index.TimeNS(mtime)
	if !ok {
		return refuse(
			p, "give it another time, with touch",
			"its time of modification, %d seconds from 1970 on, is outside of the years 1678 to 2261", mtime.Unix(),
		)
	}
	return b.t.SetAttr(p, index.Attr{ModTime: &ns})
}

// symlink takes a link; it is made when everything else is in place.
func (b *builder) symlink(p, target string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.countEntry(p); err != nil {
		return err
	}
	if p == "." {
		return refuse("", "", "the root of the tree is a symbolic link")
	}
	b.links = append(b.links, link{p, target})
	return nil
}

// moved adds to the progress.
func (b *builder) moved(p string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done += n
	b.o.Progress(Progress{Done: b.done, Total: b.total, File: p})
}

// close makes the links, then sets the directories' times, deepest first. The tree is ready to be sealed after it.
func (b *builder) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.res.Checkpoint.Files == 0 {
		return refuse("", "", "the source holds no files")
	}
	for _, l := range b.links {
		if _, ok := b.dirs[l.path]; ok {
			return refuse(l.path, "", "appears as a directory and as a symbolic link")
		}
		if err := b.mkdirs(path.Dir(l.path)); err != nil {
			return err
		}
		target, err := b.resolve(l)
		if err != nil {
			return err
		}
		if err := b.t.Symlink(target, l.path); err != nil {
			return memberError(l.path, err)
		}
		b.res.Symlinks++
	}
	paths := make([]string, 0, len(b.dirs))
	for p, mtime := range b.dirs {
		if mtime != nil {
			paths = append(paths, p)
		}
	}
	slices.SortFunc(paths, func(x, y string) int { return strings.Count(y, "/") - strings.Count(x, "/") })
	for _, p := range paths {
		if err := b.setTime(p, *b.dirs[p]); err != nil {
			return err
		}
	}
	return nil
}

// resolve checks a link's target; a parent link becomes a dependency.
func (b *builder) resolve(l link) (string, error) {
	within := checkTarget(l.path, l.target)
	if !isParentLink(l.path) {
		return l.target, within
	}
	if within == nil {
		if _, ok := b.dirs[path.Join(path.Dir(l.path), l.target)]; ok {
			return l.target, nil // the parent's images came along in the same tree
		}
	}
	name := b.o.Parent
	if name == "" {
		name = parentName(l.target)
	}
	if err := b.t.SetParent(name); err != nil {
		return "", parentError(l.path, name, err)
	}
	images, err := b.t.imagesOf(name)
	if err != nil {
		return "", parentError(l.path, name, err)
	}
	return parentTarget(l.path, name, images), nil
}

// memberError makes a doubled member of what the draft calls an existing or missing file.
func memberError(p string, err error) error {
	switch index.ClassOf(err) {
	case index.Exists:
		return refuse(p, "", "appears twice")
	case index.NotFound:
		return refuse(p, "", "lies below something that is not a directory")
	}
	return err
}
