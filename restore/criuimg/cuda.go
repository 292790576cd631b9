package criuimg

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
)

const magicFiles = 0x56303138

// CUDA tells whether a process of the images had NVIDIA's driver loaded, and the version in its library's name, such as
// 580.159.04; "" where the name has none.
func CUDA(fsys fs.FS) (used bool, version string, err error) {
	r, err := openImage(fsys, "files.img", magicFiles)
	if errors.Is(err, fs.ErrNotExist) {
		return false, "", nil // before CRIU 3.0, and no driver is that old
	}
	if err != nil {
		return false, "", err
	}
	defer r.close()
	for {
		var e fdinfo.FileEntry
		if err := r.next(&e); errors.Is(err, io.EOF) {
			return used, version, nil
		} else if err != nil {
			return false, "", err
		}
		name, ok := strings.CutPrefix(path.Base(e.GetReg().GetName()), "libcuda.so")
		if !ok || e.GetReg() == nil {
			continue
		}
		used = true
		// libcuda.so.1 has no version in its name: where it is no link, the version stays unknown.
		if v := strings.TrimPrefix(name, "."); strings.Contains(v, ".") {
			version = v
		}
	}
}
