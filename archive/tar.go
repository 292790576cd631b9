package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// ratioGrace is how many bytes may come out before the expansion is judged.
	ratioGrace = 1 << 30
	// maxWindow bounds zstd's history in bytes: what "zstd --long=27" needs, which is as far as the zstd tool goes
	// unasked.
	maxWindow = 128 << 20
	// maxTrailer bounds the zeros after the end of a tar archive in bytes; tar pads to 10 KiB, tapes to a little more.
	maxTrailer = 16 << 20
)

// meter counts the bytes that go through a reader. The zstd decoder reads ahead in a goroutine of its own.
type meter struct {
	r io.Reader
	n atomic.Int64
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.n.Add(int64(n))
	return n, err
}

// readArchive puts a tar stream into b.
func readArchive(ctx context.Context, b *builder, r io.Reader, size int64) error {
	b.total = size
	packed := &meter{r: r}
	in := bufio.NewReaderSize(packed, blockSize)
	plain, closer, err := decompress(in)
	if err != nil {
		return err
	}
	defer closer()
	t := &tarSource{b: b, packed: packed, plain: &meter{r: plain}, buf: make([]byte, blockSize)}
	t.tr = tar.NewReader(t.plain)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		more, err := t.member(ctx)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	return t.trailer()
}

// decompress tells the format by its first bytes. What is neither gzip nor zstd must be tar.
func decompress(in *bufio.Reader) (io.Reader, func(), error) {
	magic, err := in.Peek(4)
	if err != nil && err != io.EOF {
		return nil, nil, fmt.Errorf("import: %w", err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, damaged(err)
		}
		return z, func() { z.Close() }, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}),
		len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18}):
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(1<<62))
		if err != nil {
			return nil, nil, damaged(err)
		}
		return z, z.Close, nil
	}
	return in, func() {}, nil
}

func damaged(err error) error {
	hint := "check that it was copied completely"
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		hint = "compress it again without --long beyond 27"
	}
	return refuse("", hint, "the archive cannot be read: %w", err)
}

// tarSource reads one archive; one goroutine owns it.
type tarSource struct {
	b      *builder
	packed *meter // bytes of the archive as it lies on disk
	plain  *meter // bytes after decompression
	tr     *tar.Reader
	out    int64 // bytes of file content, holes included
	told   int64 // packed bytes that Progress knows of
	seen   bool  // at least one header was read
	buf    []byte
}

// member takes the next member; false at the end of the archive.
func (t *tarSource) member(ctx context.Context) (bool, error) {
	before := t.plain.n.Load()
	h, err := t.tr.Next()
	switch {
	case err == io.EOF:
		// Next ate the last member's padding, less than a block, and then at least one block of zeros, unless the
		// stream ended where a header was due.
		if t.plain.n.Load()-before < 512 {
			return false, damaged(errors.New("it ends without a trailer, so members may be missing"))
		}
		return false, nil
	case errors.Is(err, tar.ErrHeader) && !t.seen:
		return false, refuse(
			"",
			"give a tar, tar.gz or tar.zst as podman or the kubelet write them",
			"the source is not a checkpoint archive",
		)
	case err != nil:
		return false, damaged(err)
	}
	t.seen = true
	if h.Typeflag == tar.TypeXGlobalHeader {
		return true, nil
	}
	p, err := cleanName(h.Name)
	if err != nil {
		return false, err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return true, t.b.dir(p, h.FileInfo().Mode(), h.ModTime)
	case tar.TypeSymlink:
		return true, t.b.symlink(p, h.Linkname)
	case tar.TypeReg, tar.TypeGNUSparse:
		return true, t.regular(ctx, p, h)
	case tar.TypeLink:
		return false, refuse(p, "make the archive with tar --hard-dereference", "hard links are refused")
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return false, refuse(p, "", "devices and pipes are no part of a checkpoint")
	}
	return false, refuse(p, "", "members of type %q are not known", h.Typeflag)
}

func (t *tarSource) regular(ctx context.Context, p string, h *tar.Header) error {
	if p == "." {
		return refuse("", "", "the root of the tree is a file")
	}
	f, err := t.b.create(p, h.FileInfo().Mode(), h.Size)
	if err != nil {
		return err
	}
	if err := t.copyIn(ctx, p, f, h.Size); err != nil {
		f.Close()
		return err
	}
	return t.b.finish(p, f, h.ModTime)
}

func (t *tarSource) copyIn(ctx context.Context, p string, f file, size int64) error {
	for off := int64(0); off < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(t.tr, t.buf[:min(int64(len(t.buf)), size-off)])
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return damaged(fmt.Errorf("%s: %w", p, err))
		}
		if _, err := f.WriteAt(t.buf[:n], off); err != nil {
			return fmt.Errorf("import %s: %w", p, err)
		}
		off += int64(n)
		t.out += int64(n)
		if err := t.checkRatio(); err != nil {
			return err
		}
		t.tell(p)
	}
	return nil
}

func (t *tarSource) tell(p string) {
	n := t.packed.n.Load()
	t.b.moved(p, n-t.told)
	t.told = n
}

// checkRatio judges the expansion. Sparse members expand too, so it looks at contents and not at the decompressed
// stream alone.
func (t *tarSource) checkRatio() error {
	out := max(t.out, t.plain.n.Load())
	if out > ratioGrace && out/t.b.o.MaxRatio > t.packed.n.Load() {
		return refuse("", "raise --max-ratio if you trust the archive",
			"the archive expands more than %d times, which looks like a decompression bomb", t.b.o.MaxRatio)
	}
	return nil
}

// trailer reads on to the end of the stream, where gzip and zstd keep their checksums, and refuses what would be left
// out silently.
func (t *tarSource) trailer() error {
	for left := int64(maxTrailer); ; {
		n, err := t.plain.Read(t.buf)
		if len(bytes.Trim(t.buf[:n], "\x00")) > 0 {
			return refuse("", "import each archive by itself", "there is more after the end of the archive")
		}
		if left -= int64(n); left < 0 {
			return refuse("", "", "more than %d bytes of padding after the end of the archive", int64(maxTrailer))
		}
		if err == io.EOF {
			t.tell("")
			return nil
		}
		if err != nil {
			return damaged(err)
		}
	}
}
