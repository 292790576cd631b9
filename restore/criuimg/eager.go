package criuimg

import (
	"fmt"
	"io/fs"
	"strings"
)

// Piece is a part of a file, in bytes.
type Piece struct {
	File     string
	Off, Len int64
}

// Eager gives what CRIU reads of the memory images by itself when it restores with --lazy-pages: the runs that are not
// LAZY, in the order of the images. Runs with less than gap bytes between them are given as one.
func Eager(fsys fs.FS, gap int64) ([]Piece, error) {
	names, err := fs.Glob(fsys, "pagemap-*.img")
	if err != nil {
		return nil, err
	}
	var list []Piece
	for _, name := range names {
		var pid int
		if _, err := fmt.Sscanf(strings.TrimPrefix(name, "pagemap-"), "%d.img", &pid); err != nil {
			continue // of shared memory, which is small where nobody made it large
		}
		m, err := loadPagemap(fsys, ".", pid, maxRuns)
		if err != nil {
			return nil, err
		}
		for _, r := range m.runs {
			if r.flags&(peLazy|peParent) != 0 || r.flags&pePresent == 0 {
				continue
			}
			p := Piece{m.file, r.off, int64(r.end - r.start)}
			if k := len(list) - 1; k >= 0 && list[k].File == p.File && p.Off-(list[k].Off+list[k].Len) < gap {
				list[k].Len = p.Off + p.Len - list[k].Off
				continue
			}
			list = append(list, p)
		}
	}
	return list, nil
}
