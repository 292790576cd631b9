package feed

import (
	"bytes"
	"errors"
	"io/fs"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// usesCUDA tells whether a process of the images had NVIDIA's driver loaded. The names of all mapped files are in files.img.
func usesCUDA(images fs.FS) (bool, error) {
	text, err := fs.ReadFile(images, "files.img")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return bytes.Contains(text, []byte("/libcuda.so")), err
}

// burst passes everything on, and ends the record with the first sweep: when the processes run.
type burst struct {
	uffd.Supplier
	recorder *prefetch.Recorder
}

func (b burst) Sweep(ranges []prefetch.Range) {
	b.recorder.Stop()
	b.Supplier.Sweep(ranges)
}
