package index

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// Folders of a store that has a remote store: what was fetched from there, and the pushes that were begun. Other
// packages write them.
const (
	CacheFolder  = "cache"
	PushesFolder = "pushes"
	// LearnedFolder is where chunks of others lie in the remote store (package learned).
	LearnedFolder = "learned"
)

// CheckLayout refuses a store that holds a symbolic link: opening a store cuts, appends to and deletes files in it,
// usually as root, and the store may be anybody's. A pipe or a device is refused as well: opening one may never end.
// Class NoStore where such a folder has no config.json, nor its copy: it is no store.
func CheckLayout(dir string) error {
	err := checkEntries(dir)
	if err != nil && gone(filepath.Join(dir, configName)) && gone(filepath.Join(dir, copyName)) {
		return noStore(dir)
	}
	return err
}

func checkEntries(dir string) error {
	for _, sub := range []string{"", chunks.IndexFolder, chunks.PacksFolder, roots.HotFolder, CacheFolder, PushesFolder,
		LearnedFolder} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if errors.Is(err, fs.ErrNotExist) {
			continue // whoever needs it complains
		}
		if err != nil {
			return &fault.Error{Class: fault.OfOS(err), Op: "open store", Err: err}
		}
		for _, e := range entries {
			if sub == chunks.PacksFolder && filepath.Ext(e.Name()) == ".pack" && e.Type()&fs.ModeSymlink == 0 {
				continue // damage of one pack, which is never opened then
			}
			if e.Type()&(fs.ModeNamedPipe|fs.ModeDevice) != 0 {
				return &fault.Error{Class: fault.Corrupt, Op: "open store", File: filepath.Join(dir, sub, e.Name()),
					Err: errors.New("it is a pipe or a device, of which a store has none"), Hint: "remove it"}
			}
			if e.Type()&fs.ModeSymlink != 0 {
				return &fault.Error{Class: fault.Corrupt, Op: "open store", File: filepath.Join(dir, sub, e.Name()),
					Err:  errors.New("it is a symbolic link, of which a store has none"),
					Hint: "put the whole store there, or mount what it points to in its place (mount --bind)"}
			}
		}
	}
	return nil
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}
