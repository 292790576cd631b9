// Package touch brings memory of a process that comes on demand: it reads each missing page once. A driver that pins
// pages cannot wait for userfaultfd, a reader can: pin_user_pages of Linux 6.18 does not let a fault be tried again
// where its caller holds the lock of the address space.
package touch

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Span is a range of a process's addresses in bytes.
type Span struct{ Start, End uint64 }

const pageSize = 4096

// mappedParts gives what part takes of the mappings that a process can read.
func mappedParts(pid int, part func(start, end uint64, perms string) []Span) ([]Span, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Span
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var start, end uint64
		var perms string
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s", &start, &end, &perms); n == 3 && strings.HasPrefix(perms, "r") {
			out = append(out, part(start, end, perms)...)
		}
	}
	return out, lines.Err()
}

// Spans brings what of some memory of a process is mapped for reading. It gives up when no page comes for the limit;
// the reader then stays behind until the process or this one ends.
func Spans(pid int, spans []Span, limit time.Duration) error {
	parts, err := mappedParts(pid, func(start, end uint64, _ string) (out []Span) {
		for _, want := range spans {
			if part := (Span{max(start, want.Start), min(end, want.End)}); part.Start < part.End {
				out = append(out, part)
			}
		}
		return out
	})
	if err != nil {
		return err
	}
	return touch(pid, parts, limit)
}

// All brings all memory of a process that it can write and shares with nobody, within the limit of Spans.
func All(pid int, limit time.Duration) error {
	parts, err := mappedParts(pid, func(start, end uint64, perms string) []Span {
		if !strings.HasPrefix(perms, "rw-p") && !strings.HasPrefix(perms, "rwxp") {
			return nil
		}
		return []Span{{start, end}}
	})
	if err != nil {
		return err
	}
	return touch(pid, parts, limit)
}

func touch(pid int, parts []Span, limit time.Duration) error {
	moved, done := make(chan struct{}, 1), make(chan error, 1)
	go func() { done <- readPages(pid, parts, moved) }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-moved:
			timer.Reset(limit)
		case <-timer.C:
			return fmt.Errorf("memory of process %d that its GPUs use has not come for %v", pid, limit)
		}
	}
}

// window is how many pages are looked at, and then read, at a time; one call reads 1024 at most.
const window = 512

// present is the bit of an entry of /proc/PID/pagemap that says that the page is in memory
// (Documentation/admin-guide/mm/pagemap.rst of Linux).
const present = 1 << 63

// readPages reads a byte of each missing page. It leaves the others alone, since reading one takes a microsecond, too.
func readPages(pid int, parts []Span, moved chan<- struct{}) error {
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return err
	}
	defer pagemap.Close()
	for _, p := range parts {
		for at := p.Start; at < p.End; at += window * pageSize {
			absent, err := missing(pagemap, at, min(p.End, at+window*pageSize))
			if err == nil {
				err = readOnce(pid, absent, moved)
			}
			if err != nil {
				return fmt.Errorf("read memory of process %d at %#x: %w", pid, at, err)
			}
			tell(moved)
		}
	}
	return nil
}

// missing gives the pages of [start, end) that are not in memory: up to window of them. The last may be wanted in part.
func missing(pagemap *os.File, start, end uint64) (pages []unix.RemoteIovec, err error) {
	var buf [window * 8]byte
	entries := buf[:(end-start+pageSize-1)/pageSize*8]
	n, err := pagemap.ReadAt(entries, int64(start/pageSize*8))
	if err != nil && !errors.Is(err, io.EOF) { // it ends where no address is behind
		return nil, err
	}
	for i := 0; i+8 <= n; i += 8 {
		if binary.NativeEndian.Uint64(entries[i:])&present == 0 {
			pages = append(pages, unix.RemoteIovec{Base: uintptr(start + uint64(i/8)*pageSize), Len: 1})
		}
	}
	return pages, nil
}

// readOnce reads a byte of each page, and tells of each call that comes back.
func readOnce(pid int, pages []unix.RemoteIovec, moved chan<- struct{}) error {
	var buf [window]byte
	for len(pages) > 0 {
		local := []unix.Iovec{{Base: &buf[0]}}
		local[0].SetLen(len(pages))
		n, err := unix.ProcessVMReadv(pid, local, pages, 0)
		switch {
		case errors.Is(err, unix.EFAULT):
			n = 1 // beyond the end of a file, or unmapped meanwhile
		case err != nil:
			return err
		}
		pages = pages[max(n, 1):]
		tell(moved)
	}
	return nil
}

// tell does not wait: one word that was not heard yet is enough.
func tell(moved chan<- struct{}) {
	select {
	case moved <- struct{}{}:
	default:
	}
}
