package reading

import (
	"io/fs"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
)

// FileInfo describes one entry of a checkpoint.
type FileInfo struct {
	Path    string      // slash-separated, relative, cleaned
	Mode    fs.FileMode // type and permission bits; regular, directory or symlink
	Size    int64       // bytes; length of Target for symlinks
	ModTime time.Time
	Target  string // of a symlink
	Zero    int64  // bytes that are zero runs, stored nowhere
}

// Extent is a run of a file with one source. Zero runs have Zero set; the others lie in chunk ID at byte ChunkOff
// of its content.
type Extent struct {
	Off, Len int64
	Zero     bool
	ID       chunk.ID // the zero ID where the bytes lie in the manifest itself
	ChunkOff int64
}
