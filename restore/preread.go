package restore

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// CRIU reads its images one after the other: a file for each thread, and hundreds of small pieces of what cannot be left to a lazy-pages server. Each costs a request and a
// chunk. Read at once from several sides, while CRIU still prepares, they are in the page cache when it comes.
const (
	prereaders = 8
	prereadGap = 32 << 10
	prereadBuf = 1 << 20
)

// Preread reads from the image directory what CRIU will read of it, into the page cache. It returns when that is done or ctx ends; what fails here fails CRIU too, which
// tells why.
func Preread(ctx context.Context, images string) {
	list := smallImages(images)
	eager, err := criuimg.Eager(os.DirFS(images), prereadGap)
	if err != nil {
		return
	}
	list = append(list, eager...)
	pieces := make(chan criuimg.Piece)
	var readers sync.WaitGroup
	for range min(prereaders, len(list)) {
		readers.Go(func() {
			buf := make([]byte, prereadBuf)
			files := map[string]*os.File{}
			defer func() {
				for _, f := range files {
					f.Close()
				}
			}()
			for p := range pieces {
				f := files[p.File]
				if f == nil {
					var err error
					if f, err = os.Open(filepath.Join(images, p.File)); err != nil {
						continue
					}
					// What lies between the pieces is not for now: with the kernel's readahead three times as much was read.
					_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM)
					files[p.File] = f
				}
				for at := p.Off; at < p.Off+p.Len && ctx.Err() == nil; at += prereadBuf {
					if _, err := f.ReadAt(buf[:min(prereadBuf, p.Off+p.Len-at)], at); err != nil && err != io.EOF {
						break
					}
				}
			}
		})
	}
	for _, p := range list {
		select {
		case pieces <- p:
		case <-ctx.Done():
		}
	}
	close(pieces)
	readers.Wait()
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
