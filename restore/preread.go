package restore

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// CRIU reads its images one after the other: a file for each thread, and hundreds of small pieces of what cannot be
// left to a lazy-pages server. Each costs a request and a chunk. Read at once from several sides, while CRIU still
// prepares, they are in the page cache when it comes.
const (
	prereaders = 8
	prereadGap = 32 << 10
	prereadBuf = 1 << 20
)

// Preread reads from the image directory what CRIU will read of it, into the page cache. It returns when that is done
// or ctx ends; what fails here fails CRIU too, which tells why.
func Preread(ctx context.Context, images string) {
	pieces := make(chan criuimg.Piece)
	var readers sync.WaitGroup
	for range prereaders {
		readers.Go(func() {
			r := reader{images: images, buf: make([]byte, prereadBuf)}
			defer r.close()
			for p := range pieces {
				r.read(ctx, p)
			}
		})
	}
	defer readers.Wait()
	defer close(pieces)
	feed := func(list []criuimg.Piece) {
		for _, p := range list {
			select {
			case pieces <- p:
			case <-ctx.Done():
			}
		}
	}
	feed(smallImages(images))
	if eager, err := criuimg.Eager(os.DirFS(images), prereadGap); err == nil {
		feed(eager)
	}
}

// reader reads pieces, with one file open at a time: images may be more than a process may have open.
type reader struct {
	images string
	buf    []byte
	name   string
	f      *os.File // of that name, or nil
}

func (r *reader) close() {
	if r.f != nil {
		r.f.Close()
	}
}

func (r *reader) read(ctx context.Context, p criuimg.Piece) {
	if r.f == nil || r.name != p.File {
		r.close()
		var err error
		if r.f, err = os.Open(filepath.Join(r.images, p.File)); err != nil {
			r.f = nil
			return
		}
		r.name = p.File
		// What lies between the pieces is not for now: with the kernel's readahead three times as much was read.
		_ = unix.Fadvise(int(r.f.Fd()), 0, 0, unix.FADV_RANDOM)
	}
	for at := p.Off; at < p.Off+p.Len && ctx.Err() == nil; at += prereadBuf {
		if _, err := r.f.ReadAt(r.buf[:min(prereadBuf, p.Off+p.Len-at)], at); err != nil {
			return
		}
	}
}

// smallImages gives the images that are read as a whole.
func smallImages(images string) (list []criuimg.Piece) {
	entries, err := os.ReadDir(images)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".img" || strings.HasPrefix(e.Name(), "pages-") || !e.Type().IsRegular() {
			continue
		}
		if st, err := e.Info(); err == nil && st.Size() <= prereadBuf {
			list = append(list, criuimg.Piece{File: e.Name(), Len: st.Size()})
		}
	}
	return list
}
