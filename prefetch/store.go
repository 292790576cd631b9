package prefetch

import "github.com/gpucr/gpucr-fs/index"

// StoreFile is a File of a sealed checkpoint in a store.
type StoreFile struct{ *index.File }

// ReadAt passes by the store's cache where it can: who restores keeps what was
// read.
func (f StoreFile) ReadAt(p []byte, off int64) (int, error) { return f.ReadInto(p, off) }

// Advise lets the kernel read ahead.
func (f StoreFile) Advise(off, n int64) { f.WillNeed(off, n) }

// Data finds zero runs in the manifest, without reading payload.
func (f StoreFile) Data(off, end int64) (start, stop int64, err error) {
	start, stop = end, end
	found := false
	err = f.Extents(off, end-off, func(x index.Extent) bool {
		switch {
		case !x.Zero && !found:
			found, start = true, x.Off
		case x.Zero && found:
			// A page that is zero in part has to be read.
			stop = (x.Off + PageSize - 1) &^ (PageSize - 1)
			if stop >= min(x.Off+x.Len, end) {
				stop = end
				return true
			}
			return false
		}
		return true
	})
	if err != nil {
		return off, end, err
	}
	return max(off, start&^(PageSize-1)), stop, nil
}
