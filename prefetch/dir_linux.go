package prefetch

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OSFile is a File of a plain directory.
type OSFile struct {
	f    *os.File
	size int64
}

// OpenFile opens a file of a plain image directory.
func OpenFile(path string) (*OSFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return &OSFile{f, st.Size()}, nil
}

func (o *OSFile) ReadAt(p []byte, off int64) (int, error) { return o.f.ReadAt(p, off) }

// Size is the size when the file was opened.
func (o *OSFile) Size() int64 { return o.size }

func (o *OSFile) Close() error { return o.f.Close() }

// Advise lets the kernel read ahead.
func (o *OSFile) Advise(off, n int64) {
	// Advice that is not taken changes nothing.
	unix.Fadvise(int(o.f.Fd()), off, n, unix.FADV_WILLNEED)
}

// Data finds data by the holes of the file. File systems that keep no account
// of holes say that everything is data.
func (o *OSFile) Data(off, end int64) (start, stop int64, err error) {
	fd := int(o.f.Fd())
	start, err = unix.Seek(fd, off, unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO:
		return end, end, nil // a hole up to the end of the file
	case err != nil:
		return off, end, nil
	case start >= end:
		return end, end, nil
	}
	start = max(off, start&^(PageSize-1))
	stop, err = unix.Seek(fd, start, unix.SEEK_HOLE)
	if err != nil {
		return start, end, nil
	}
	stop = (stop + PageSize - 1) &^ (PageSize - 1)
	return start, min(stop, end), nil
}

// advise lets the kernel read the packed hot set ahead.
func (p *Packed) advise() {
	if f, ok := p.f.(interface{ Fd() uintptr }); ok {
		// Advice that is not taken changes nothing.
		unix.Fadvise(int(f.Fd()), 0, p.Bytes(), unix.FADV_WILLNEED)
	}
}
