package reading

import "fmt"

// ReadPart reads as ReadInto does where it takes a part of a chunk for one that is stored as it is, whether it is
// or not. Tests have no other way to the moment in which a chunk is stored anew.
func (f *File) ReadPart(p []byte, off int64) (err error) {
	var w wantedChunk
	if err := f.walk(off, off+int64(len(p)), func(x stretch) bool {
		w = wantedChunk{ref: x.c, parts: []part{{at: x.at, n: x.n, off: x.off}}}
		return false
	}); err != nil {
		return err
	}
	if w.ref == nil || w.parts[0].n != int64(len(p)) || w.parts[0].n == int64(w.ref.Len) {
		return fmt.Errorf("%d bytes at %d are no part of a chunk", len(p), off)
	}
	f.c.s.readInto([]wantedChunk{w}, p, off, false, func(_ int64, e error) { err = e })
	return err
}
