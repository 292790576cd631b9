package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpucr/gpucr-fs/index"
)

// Import brings the image directory or checkpoint archive at src into the store as checkpoint name, sealed.
//
// Errors: those of [index.Store.Create]; a refused source is an error that names the member; NotFound when an
// incremental dump's parent is not in the store.
func Import(ctx context.Context, s *index.Store, name, src string, o ImportOptions) (Result, error) {
	st, err := os.Stat(src)
	if err != nil {
		return Result{}, sourceError(err)
	}
	if st.IsDir() {
		if err := index.NeedInventory("import", name, statIn(src)); err != nil { // before it is read as a whole
			return Result{}, noCheckpoint(err)
		}
		return into(ctx, s, name, o, func(b *builder) error { return readDir(ctx, b, src) })
	}
	if !st.Mode().IsRegular() && st.Mode()&os.ModeNamedPipe == 0 {
		return Result{}, refuse(
			src, "give a directory, an archive, or - for standard input", "is neither a directory nor an archive",
		)
	}
	f, err := os.Open(src)
	if err != nil {
		return Result{}, sourceError(err)
	}
	defer f.Close()
	adviseSequential(f)
	size := int64(0)
	if st.Mode().IsRegular() {
		size = st.Size()
	}
	return ImportStream(ctx, s, name, f, size, o)
}

// ImportStream brings a checkpoint archive (tar, tar.gz or tar.zst, told by its first bytes) into the store. It reads r
// to its end; size is its length in bytes for Progress, 0 when unknown.
func ImportStream(
	ctx context.Context,
	s *index.Store,
	name string,
	r io.Reader,
	size int64,
	o ImportOptions,
) (Result, error) {
	return into(ctx, s, name, o, func(b *builder) error { return readArchive(ctx, b, r, size) })
}

func sourceError(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		e := &index.Error{Op: "import", File: pe.Path, Err: pe.Err}
		if errors.Is(err, os.ErrNotExist) {
			e.Class = index.NotFound
		}
		return e
	}
	return fmt.Errorf("import: %w", err)
}

// statIn describes files of a folder as a checkpoint would that was made of it.
func statIn(dir string) func(p string) (index.FileInfo, error) {
	return func(p string) (index.FileInfo, error) {
		st, err := os.Lstat(filepath.Join(dir, p))
		if err != nil {
			return index.FileInfo{}, sourceError(err)
		}
		return index.FileInfo{Path: p, Mode: st.Mode(), Size: st.Size()}, nil
	}
}

func noCheckpoint(err error) error {
	var e *index.Error
	if errors.As(err, &e) && e.Class == index.Invalid {
		e.Hint = "give the folder that was criu dump's -D, or an archive that podman or the kubelet made"
	}
	return err
}

// into runs read on a new draft and seals it, or aborts it.
func into(
	ctx context.Context,
	s *index.Store,
	name string,
	o ImportOptions,
	read func(*builder) error,
) (res Result, err error) {
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	o.setDefaults()
	d, err := s.Create(ctx, name, index.CreateOptions{Tags: o.Tags, Labels: o.Labels})
	if err != nil {
		return Result{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Abort())
		}
	}()
	b := newBuilder(draftTree{d, s}, o)
	if err := read(b); err != nil {
		return Result{}, err
	}
	if err := b.close(); err != nil {
		return Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if err := index.NeedInventory("import", name, d.Stat); err != nil {
		return Result{}, noCheckpoint(err)
	}
	info, err := d.Seal(ctx)
	if err != nil {
		return Result{}, err
	}
	b.res.Checkpoint = info
	return b.res, nil
}
