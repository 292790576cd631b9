package restore

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// CRIU reads what cannot be left to a lazy-pages server in one call, hundreds of small pieces one after the other: each costs a request and a chunk. Read at once from
// several sides, while CRIU still prepares, they are in the page cache when it comes.
const (
	prereaders = 8
	prereadGap = 32 << 10
	prereadBuf = 1 << 20
)

// Preread reads from the image directory what CRIU will read of its memory images, into the page cache. It returns when that is done or ctx ends; what fails here fails CRIU
// too, which tells why.
func Preread(ctx context.Context, images string) {
	list, err := criuimg.Eager(os.DirFS(images), prereadGap)
	if err != nil {
		return
	}
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
