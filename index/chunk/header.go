package chunk

import (
	"path"
	"strings"
)

// HeaderLen is where the pages of the image at p begin, in bytes. CRIU's amdgpu plugin writes an 8-byte payload size in
// front of raw pages; a cut behind it keeps them aligned, so that they dedupe with the same pages elsewhere
// (plugins/amdgpu/amdgpu_plugin_util.c, write_img_file).
func HeaderLen(p string) int64 {
	if base := path.Base(p); strings.HasPrefix(base, "amdgpu-pages-") || strings.HasPrefix(base, "amdgpu-drm-pages-") {
		return 8
	}
	return 0
}
