package reading

import (
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/gpucr/gpucr-fs/index/fault"
)

// FS gives an io/fs view of the checkpoint: ReadDirFS and StatFS; its files are io.ReaderAt and io.Seeker. Symlinks
// are shown, not followed.
func (c *Checkpoint) FS() fs.FS { return view{c} }

type view struct{ c *Checkpoint }

// pathError is an error as io/fs has it.
func pathError(op, name string, err error) error {
	if fault.ClassOf(err) == fault.NotFound {
		err = fs.ErrNotExist
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (v view) Open(name string) (fs.File, error) {
	info, err := v.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		entries, err := v.ReadDir(name)
		return &viewDir{info: info, entries: entries}, err
	}
	f, err := v.c.Open(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &viewFile{SectionReader: io.NewSectionReader(f, 0, f.Size()), f: f, info: info}, nil
}

func (v view) Stat(name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrInvalid}
	}
	info, err := v.c.Stat(name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return viewInfo{info}, nil
}

func (v view) ReadDir(name string) ([]fs.DirEntry, error) {
	if info, err := v.Stat(name); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	var out []fs.DirEntry
	for _, e := range v.c.infos {
		if path.Dir(e.Path) == name {
			out = append(out, fs.FileInfoToDirEntry(viewInfo{e}))
		}
	}
	return out, nil
}

type viewInfo struct{ i FileInfo }

func (v viewInfo) Name() string       { return path.Base(v.i.Path) }
func (v viewInfo) Size() int64        { return v.i.Size }
func (v viewInfo) Mode() fs.FileMode  { return v.i.Mode }
func (v viewInfo) ModTime() time.Time { return v.i.ModTime }
func (v viewInfo) IsDir() bool        { return v.i.Mode.IsDir() }
func (v viewInfo) Sys() any           { return v.i }

type viewFile struct {
	*io.SectionReader
	f    *File
	info fs.FileInfo
}

func (v *viewFile) Stat() (fs.FileInfo, error) { return v.info, nil }
func (v *viewFile) Close() error               { return v.f.Close() }

type viewDir struct {
	info    fs.FileInfo
	entries []fs.DirEntry
	next    int
}

func (v *viewDir) Stat() (fs.FileInfo, error) { return v.info, nil }
func (v *viewDir) Close() error               { return nil }
func (v *viewDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: v.info.Name(), Err: fs.ErrInvalid}
}

func (v *viewDir) ReadDir(n int) ([]fs.DirEntry, error) {
	rest := v.entries[v.next:]
	if n > 0 {
		if len(rest) == 0 {
			return nil, io.EOF
		}
		rest = rest[:min(n, len(rest))]
	}
	v.next += len(rest)
	return rest, nil
}
