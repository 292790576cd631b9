package archive

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"
)

// source is one regular file found in a directory.
type source struct {
	path string
	size int64
}

// readDir puts a directory tree into b. Folders and links are taken by one walk, then the files are read in parallel,
// largest first: a dump is one large pages image and many small files, and the small ones fill the cores that the large
// one leaves idle.
func readDir(ctx context.Context, b *builder, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return sourceError(err)
	}
	defer root.Close()

	var files []source
	err = fs.WalkDir(root.FS(), ".", func(raw string, e fs.DirEntry, err error) error {
		if err != nil {
			return sourceError(err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		p, err := cleanName(raw)
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return sourceError(err)
		}
		switch st.Mode().Type() {
		case fs.ModeDir:
			return b.dir(p, st.Mode(), st.ModTime())
		case fs.ModeSymlink:
			target, err := root.Readlink(p)
			if err != nil {
				return sourceError(err)
			}
			return b.symlink(p, target)
		case fs.ModeSocket:
			b.o.Logger.Warn("socket left out", "path", p)
			b.res.Skipped = append(b.res.Skipped, p)
			return nil
		case 0:
			if len(files) > b.o.MaxFiles {
				return b.countEntry(p)
			}
			files = append(files, source{p, st.Size()})
			b.total += st.Size()
			return nil
		}
		return refuse(p, "remove it from the directory", "devices and pipes are no part of a checkpoint")
	})
	if err != nil {
		return err
	}

	slices.SortStableFunc(files, func(x, y source) int {
		switch {
		case x.size > y.size:
			return -1
		case x.size < y.size:
			return 1
		}
		return 0
	})
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(runtime.GOMAXPROCS(0), 8))
	for _, f := range files {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return copyIn(ctx, b, root, f.path) })
	}
	return g.Wait()
}

// copyIn reads one file of a directory, its runs of data only.
func copyIn(ctx context.Context, b *builder, root *os.Root, p string) error {
	f, err := root.OpenFile(p, nofollow, 0)
	if err != nil {
		return sourceError(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return sourceError(err)
	}
	if !st.Mode().IsRegular() {
		return changed(p)
	}
	adviseSequential(f)
	size := st.Size()
	out, err := b.create(p, st.Mode(), size)
	if err != nil {
		return err
	}
	if err := copyRuns(ctx, b, out, f, p, size); err != nil {
		out.Close()
		return err
	}
	if err := out.Truncate(size); err != nil {
		out.Close()
		return err
	}
	if err := b.finish(p, out, st.ModTime()); err != nil {
		return err
	}
	if now, err := f.Stat(); err != nil || now.Size() != size || !now.ModTime().Equal(st.ModTime()) {
		return changed(p)
	}
	return nil
}

func changed(p string) error {
	return refuse(p, "wait until nothing writes to the directory", "the file changed while it was read")
}

func copyRuns(ctx context.Context, b *builder, out file, f *os.File, p string, size int64) error {
	buf := make([]byte, min(blockSize, size))
	for off := int64(0); off < size; {
		start, end, err := nextData(f, off, size)
		if err != nil {
			return sourceError(err)
		}
		b.moved(p, start-off)
		for off = start; off < end; {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := f.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
			if n > 0 {
				if _, err := out.WriteAt(buf[:n], off); err != nil {
					return fmt.Errorf("import %s: %w", p, err)
				}
				off += int64(n)
				b.moved(p, int64(n))
			}
			switch {
			case err == io.EOF && off < end:
				return changed(p)
			case err != nil && err != io.EOF:
				return sourceError(err)
			}
		}
	}
	return nil
}
