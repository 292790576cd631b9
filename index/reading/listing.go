package reading

import (
	"io"
	"io/fs"
	"path"
	"sort"
)

// Listing is an io/fs view of files that are not sealed yet. Symlinks are shown, not followed.
type Listing struct {
	Files  map[string]FileInfo           // by path, folders and symlinks as well
	Reader func(path string) io.ReaderAt // of a regular file
}

// Open implements fs.FS for regular files.
func (l Listing) Open(name string) (fs.File, error) {
	i, ok := l.Files[name]
	if !ok || !i.Mode.IsRegular() {
		return nil, pathError("open", name, fs.ErrNotExist)
	}
	return &listedFile{SectionReader: io.NewSectionReader(l.Reader(name), 0, i.Size), info: viewInfo{i}}, nil
}

// ReadDir implements fs.ReadDirFS.
func (l Listing) ReadDir(name string) ([]fs.DirEntry, error) {
	if i, ok := l.Files[name]; name != "." && !(ok && i.Mode.IsDir()) {
		return nil, pathError("readdir", name, fs.ErrNotExist)
	}
	var out []fs.DirEntry
	for p, i := range l.Files {
		if path.Dir(p) == name {
			out = append(out, fs.FileInfoToDirEntry(viewInfo{i}))
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name() < out[j].Name() })
	return out, nil
}

// Stat implements fs.StatFS.
func (l Listing) Stat(name string) (fs.FileInfo, error) {
	i, ok := l.Files[name]
	if !ok {
		return nil, pathError("stat", name, fs.ErrNotExist)
	}
	return viewInfo{i}, nil
}

type listedFile struct {
	*io.SectionReader
	info fs.FileInfo
}

func (f *listedFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *listedFile) Close() error               { return nil }
