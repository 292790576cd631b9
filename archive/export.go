package archive

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/gpucr/gpucr-fs/index"
)

// span is how many bytes of a file one worker fetches and writes at a time.
const span = 4 << 20

// Compression of an exported archive.
type Compression string

const (
	// Plain is tar without compression.
	Plain Compression = "none"
	// Gzip is tar.gz.
	Gzip Compression = "gzip"
	// Zstd is tar.zst.
	Zstd Compression = "zstd"
)

// CompressionOf tells the format an archive's name asks for; false when the name is not that of an archive.
func CompressionOf(name string) (Compression, bool) {
	switch {
	case strings.HasSuffix(name, ".tar"):
		return Plain, true
	case strings.HasSuffix(name, ".tar.gz"), strings.HasSuffix(name, ".tgz"):
		return Gzip, true
	case strings.HasSuffix(name, ".tar.zst"), strings.HasSuffix(name, ".tzst"):
		return Zstd, true
	}
	return "", false
}

// ExportOptions of one export. The zero value is usable.
type ExportOptions struct {
	// Progress, if set, is called from one goroutine at a time.
	Progress func(Progress)
}

// ExportResult says what an export wrote.
type ExportResult struct {
	Checkpoint string `json:"checkpoint"`
	Target     string `json:"target"`
	Files      int    `json:"files"`
	Bytes      int64  `json:"bytes"` // file sizes, holes included
	Holes      int64  `json:"holes"` // bytes of them left as holes
}

// ExportDir writes the checkpoint to the directory dst, which must not exist or be empty. The result is complete and on
// stable storage, or dst is untouched.
func ExportDir(ctx context.Context, c *index.Checkpoint, dst string, o ExportOptions) (ExportResult, error) {
	res := ExportResult{Checkpoint: c.Info().Name, Target: dst}
	if entries, err := os.ReadDir(dst); err == nil && len(entries) > 0 {
		return res, exists(dst, "give a directory that does not exist yet, or an empty one")
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return res, fmt.Errorf("export: %w", err)
	}
	parent := filepath.Dir(filepath.Clean(dst))
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(dst)+".partial-")
	if err != nil {
		return res, fmt.Errorf("export: %w", err)
	}
	defer os.RemoveAll(tmp) // nothing is left under this name after the rename
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return res, fmt.Errorf("export: %w", err)
	}
	defer root.Close()
	e := exporter{c: c, tell: newTeller(o, &res, c), res: &res, root: root}
	if err := e.write(ctx); err != nil {
		return res, err
	}
	if err := replaceEmpty(tmp, dst); err != nil {
		return res, fmt.Errorf("export: %w", err)
	}
	return res, syncDir(parent)
}

func exists(dst, hint string) error {
	return &index.Error{Class: index.Exists, Op: "export", File: dst, Hint: hint, Err: errors.New("exists already")}
}

// members gives what an export has: the entries of the checkpoint, and the link to its parent. A mount makes that by
// itself, so the checkpoint that criu dump wrote there holds none.
func members(c *index.Checkpoint) []index.FileInfo {
	all, info := c.Entries(), c.Info()
	if info.Parent == "" || slices.ContainsFunc(all, func(e index.FileInfo) bool { return isParentLink(e.Path) }) {
		return all
	}
	target := parentTarget("parent", info.Parent, ".")
	return append(slices.Clip(all), index.FileInfo{
		Path: "parent", Mode: fs.ModeSymlink | 0o777, ModTime: info.SealedAt, Target: target, Size: int64(len(target)),
	})
}

func newTeller(o ExportOptions, res *ExportResult, c *index.Checkpoint) *teller {
	t := &teller{tell: o.Progress}
	if t.tell == nil {
		t.tell = func(Progress) {}
	}
	for _, e := range c.Entries() {
		if e.Mode.IsRegular() {
			res.Files++
			res.Bytes += e.Size
			t.total += e.Size
		}
	}
	return t
}

// exporter writes one checkpoint into a fresh directory. Everything goes through root: what the checkpoint says cannot
// lead out of it, symlinks included.
type exporter struct {
	root *os.Root
	c    *index.Checkpoint
	tell *teller
	res  *ExportResult
}

// write makes folders and links, fills the files in parallel spans, then sets times and syncs, deepest folder first.
func (e *exporter) write(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	var open []*target
	defer func() {
		for _, t := range open {
			t.close()
		}
	}()
	var err error
	for _, ent := range members(e.c) {
		if err = gctx.Err(); err != nil {
			break
		}
		if ent.Mode.IsRegular() {
			var t *target
			if t, err = e.open(ent); err != nil {
				break
			}
			open = append(open, t)
			e.fill(gctx, g, t)
			if len(open) >= 64 {
				// Wait for the batch, so that the number of open files stays bounded.
				if err = e.drain(g, &open); err != nil {
					break
				}
				g, gctx = errgroup.WithContext(ctx)
				g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
			}
			continue
		}
		if err = e.node(ent); err != nil {
			break
		}
	}
	if werr := e.drain(g, &open); werr != nil {
		return werr
	}
	if err != nil {
		return err
	}
	return e.times()
}

// drain waits for the files being filled and syncs them.
func (e *exporter) drain(g *errgroup.Group, open *[]*target) error {
	err := g.Wait()
	for _, t := range *open {
		if err == nil {
			err = t.finish()
		}
		e.res.Holes += t.holes
		t.close()
	}
	*open = (*open)[:0]
	return err
}

func (e *exporter) node(ent index.FileInfo) error {
	var err error
	switch {
	case ent.Mode.IsDir():
		err = e.root.Mkdir(ent.Path, 0o700) // its own mode follows when it is full
	case ent.Mode&fs.ModeSymlink != 0:
		err = e.root.Symlink(ent.Target, ent.Path)
	}
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

// times gives folders their modes and times and syncs them, children before parents.
func (e *exporter) times() error {
	entries := e.c.Entries()
	for i := len(entries) - 1; i >= 0; i-- {
		ent := entries[i]
		if !ent.Mode.IsDir() {
			continue
		}
		if err := errors.Join(e.root.Chmod(ent.Path, ent.Mode.Perm()),
			e.sync(ent.Path), e.root.Chtimes(ent.Path, ent.ModTime, ent.ModTime)); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	}
	return e.sync(".")
}

// sync makes the names in a folder durable.
func (e *exporter) sync(p string) error {
	d, err := e.root.Open(p)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// target is one file being written. The exporter's goroutine owns it but for out and in, which the span workers use.
type target struct {
	ent   index.FileInfo
	root  *os.Root
	in    *index.File
	out   *os.File
	holes int64
}

func (e *exporter) open(ent index.FileInfo) (*target, error) {
	in, err := e.c.Open(ent.Path)
	if err != nil {
		return nil, err
	}
	out, err := e.create(ent.Path)
	if err != nil {
		in.Close()
		return nil, fmt.Errorf("export: %w", err)
	}
	t := &target{ent: ent, in: in, out: out, root: e.root}
	if err := out.Truncate(ent.Size); err != nil {
		t.close()
		return nil, fmt.Errorf("export: %w", err)
	}
	return t, nil
}

// create makes a file that is not there yet.
func (e *exporter) create(p string) (*os.File, error) {
	return e.root.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// fill schedules the data of a file, span by span; zero runs stay holes.
func (e *exporter) fill(ctx context.Context, g *errgroup.Group, t *target) {
	if err := dataRuns(t.in, func(off, n int64) {
		for n > 0 {
			part := min(n, span)
			at := off
			g.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return e.copyOut(ctx, t, at, part)
			})
			off, n = off+part, n-part
		}
	}, func(n int64) {
		t.holes += n
		e.tell.add(t.ent.Path, n)
	}); err != nil {
		g.Go(func() error { return err })
	}
}

func (e *exporter) copyOut(ctx context.Context, t *target, off, n int64) error {
	s, err := t.in.Read(ctx, off, int(n))
	if err != nil {
		return err
	}
	defer s.Release()
	if int64(s.Len()) != n {
		return fmt.Errorf("export %s: %w", t.ent.Path, io.ErrUnexpectedEOF)
	}
	for _, b := range s.Buffers() {
		if _, err := t.out.WriteAt(b, off); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		off += int64(len(b))
	}
	e.tell.add(t.ent.Path, n)
	return nil
}

// finish makes a filled file durable and final.
func (t *target) finish() error {
	if err := errors.Join(t.out.Chmod(t.ent.Mode.Perm()), t.out.Sync(), t.out.Close(),
		t.root.Chtimes(t.ent.Path, t.ent.ModTime, t.ent.ModTime)); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

func (t *target) close() {
	t.in.Close()
	t.out.Close()
}

// dataRuns calls data for each maximal run of stored bytes, zero for each zero run.
func dataRuns(f *index.File, data func(off, n int64), zero func(n int64)) error {
	var off, n int64
	flush := func() {
		if n > 0 {
			data(off, n)
		}
		n = 0
	}
	err := f.Extents(0, f.Size(), func(x index.Extent) bool {
		switch {
		case x.Zero:
			flush()
			zero(x.Len)
		case n > 0 && off+n == x.Off:
			n += x.Len
		default:
			flush()
			off, n = x.Off, x.Len
		}
		return true
	})
	flush()
	return err
}

func syncDir(p string) error {
	d, err := os.Open(p)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

// ExportTarFile writes the checkpoint as an archive to the file dst, which must not exist; it is complete and on stable
// storage, or not there.
func ExportTarFile(
	ctx context.Context,
	c *index.Checkpoint,
	dst string,
	z Compression,
	o ExportOptions,
) (ExportResult, error) {
	res := ExportResult{Checkpoint: c.Info().Name, Target: dst}
	if _, err := os.Lstat(dst); err == nil {
		return res, exists(dst, "give a name that does not exist yet")
	}
	f, err := os.CreateTemp(filepath.Dir(dst), "."+filepath.Base(dst)+".partial-")
	if err != nil {
		return res, fmt.Errorf("export: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	w := bufio.NewWriterSize(f, blockSize)
	if res, err = ExportTar(ctx, c, w, z, o); err != nil {
		return res, err
	}
	res.Target = dst
	if err := errors.Join(w.Flush(), f.Sync(), f.Close()); err != nil {
		return res, fmt.Errorf("export: %w", err)
	}
	// A link, unlike a rename, never replaces what appeared at dst meanwhile.
	if err := os.Link(f.Name(), dst); err != nil {
		return res, fmt.Errorf("export: %w", err)
	}
	return res, syncDir(filepath.Dir(dst))
}

// ExportTar writes the checkpoint as a tar stream. Holes are written as zeros; a stream that ends in an error is not a
// complete archive.
func ExportTar(
	ctx context.Context,
	c *index.Checkpoint,
	w io.Writer,
	z Compression,
	o ExportOptions,
) (ExportResult, error) {
	res := ExportResult{Checkpoint: c.Info().Name, Target: "-"}
	out, err := compress(w, z)
	if err != nil {
		return res, err
	}
	tell := newTeller(o, &res, c)
	tw := tar.NewWriter(out)
	for _, ent := range members(c) {
		if ent.Path == "." {
			continue
		}
		if err := exportMember(ctx, c, tw, ent, tell); err != nil {
			return res, err
		}
	}
	if err := errors.Join(tw.Close(), out.Close()); err != nil {
		return res, fmt.Errorf("export: %w", err)
	}
	return res, nil
}

func exportMember(ctx context.Context, c *index.Checkpoint, tw *tar.Writer, ent index.FileInfo, tell *teller) error {
	h := &tar.Header{Name: ent.Path, Mode: int64(ent.Mode.Perm()), ModTime: ent.ModTime, Format: tar.FormatPAX}
	switch {
	case ent.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, ent.Path+"/"
	case ent.Mode&fs.ModeSymlink != 0:
		h.Typeflag, h.Linkname = tar.TypeSymlink, ent.Target
	default:
		h.Typeflag, h.Size = tar.TypeReg, ent.Size
	}
	if err := tw.WriteHeader(h); err != nil {
		return fmt.Errorf("export %s: %w", path.Clean(ent.Path), err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := c.Open(ent.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	for off := int64(0); off < ent.Size; {
		n := min(span, ent.Size-off)
		if err := tarSpan(ctx, f, tw, off, n); err != nil {
			return err
		}
		tell.add(ent.Path, n)
		off += n
	}
	return nil
}

func tarSpan(ctx context.Context, f *index.File, tw *tar.Writer, off, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := f.Read(ctx, off, int(n))
	if err != nil {
		return err
	}
	defer s.Release()
	for _, b := range s.Buffers() {
		if _, err := tw.Write(b); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	}
	return nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func compress(w io.Writer, z Compression) (io.WriteCloser, error) {
	switch z {
	case Plain, "":
		return nopCloser{w}, nil
	case Gzip:
		return gzip.NewWriter(w), nil
	case Zstd:
		return zstd.NewWriter(w)
	}
	return nil, &index.Error{
		Class: index.Invalid,
		Op:    "export",
		Err:   fmt.Errorf("unknown compression %q", string(z)),
		Hint:  "use none, gzip or zstd",
	}
}
