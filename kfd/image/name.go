package image

import "fmt"

// FileKind says what one file of the plugin holds.
type FileKind int

// Kinds of files, in the order of the package comment.
const (
	ProcessFile FileKind = iota + 1
	PagesFile
	RenderNodeFile
	RenderPagesFile
	DmabufFile
)

// Name is the parsed name of one of the plugin's files.
type Name struct {
	Kind  FileKind
	ID    int    // CRIU's id of the open file
	GPUID uint32 // of a pages file, as the process knows it
	Minor int    // of a render pages file
	Index int    // of a render pages file: the BO's place in its image
}

// String returns the file's name.
func (n Name) String() string {
	switch n.Kind {
	case ProcessFile:
		return fmt.Sprintf("amdgpu-kfd-%d.img", n.ID)
	case PagesFile:
		return fmt.Sprintf("amdgpu-pages-%d-%04x.img", n.ID, n.GPUID)
	case RenderNodeFile:
		return fmt.Sprintf("amdgpu-renderD-%d.img", n.ID)
	case RenderPagesFile:
		return fmt.Sprintf("amdgpu-drm-pages-%d-%d-%04x.img", n.ID, n.Minor, n.Index)
	case DmabufFile:
		return fmt.Sprintf("amdgpu-dmabuf_%d.img", n.ID)
	}
	return ""
}

// ParseName parses a file's name, which may not contain a directory. It
// reports false for any name that the plugin would not write.
func ParseName(s string) (Name, bool) {
	for kind := ProcessFile; kind <= DmabufFile; kind++ {
		n := Name{Kind: kind}
		// Scanning is lenient about signs, zeros and case. That the name
		// comes out again as it went in settles it.
		switch kind {
		case ProcessFile:
			fmt.Sscanf(s, "amdgpu-kfd-%d", &n.ID)
		case PagesFile:
			fmt.Sscanf(s, "amdgpu-pages-%d-%x", &n.ID, &n.GPUID)
		case RenderNodeFile:
			fmt.Sscanf(s, "amdgpu-renderD-%d", &n.ID)
		case RenderPagesFile:
			fmt.Sscanf(s, "amdgpu-drm-pages-%d-%d-%x", &n.ID, &n.Minor, &n.Index)
		case DmabufFile:
			fmt.Sscanf(s, "amdgpu-dmabuf_%d", &n.ID)
		}
		if n.ID >= 0 && n.Minor >= 0 && n.Index >= 0 && n.String() == s {
			return n, true
		}
	}
	return Name{}, false
}
