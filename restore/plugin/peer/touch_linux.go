package peer

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/image"
)

// span is a range of a process's addresses in bytes.
type span struct{ start, end uint64 }

const pageSize = 4096

// hostMemory returns what the GPUs of a process use of its own memory: userptr
// buffer objects and ranges of shared virtual memory. Private data that is not
// understood tells nothing; the driver will have its say.
func hostMemory(p image.Process) []span {
	priv, err := p.PrivData()
	if err != nil {
		return nil
	}
	var out []span
	for i, bo := range p.Layout.BOs {
		if bo.Kind == image.Userptr {
			start := priv.BOs[i].UserAddr &^ (pageSize - 1)
			out = append(out, span{start, start + uint64(bo.Size)})
		}
	}
	for _, r := range priv.Ranges {
		// The driver counts these in pages.
		out = append(out, span{r.StartAddr * pageSize, (r.StartAddr + r.Size) * pageSize})
	}
	return out
}

// mappedParts cuts spans down to what a process has mapped for reading.
func mappedParts(pid int, spans []span) ([]span, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []span
	for s := bufio.NewScanner(f); s.Scan(); {
		var start, end uint64
		var perms string
		if n, _ := fmt.Sscanf(s.Text(), "%x-%x %s", &start, &end, &perms); n < 3 || !strings.HasPrefix(perms, "r") {
			continue
		}
		for _, want := range spans {
			if part := (span{max(start, want.start), min(end, want.end)}); part.start < part.end {
				out = append(out, part)
			}
		}
	}
	return out, nil
}

// touch has every page of some memory of a process read once. With lazy pages
// that brings it: the driver cannot wait for userfaultfd when it looks up the
// pages on RESUME, a reader can. It gives up when no page comes for the limit;
// the reader then stays behind until the process or this one ends.
func touch(pid int, spans []span, limit time.Duration) error {
	parts, err := mappedParts(pid, spans)
	if err != nil {
		return err
	}
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

// batch is how many pages one call reads a byte of; the kernel takes 1024.
const batch = 256

func readPages(pid int, parts []span, moved chan<- struct{}) error {
	buf := make([]byte, batch)
	for _, p := range parts {
		for at := p.start; at < p.end; {
			var remote []unix.RemoteIovec
			for next := at; next < p.end && len(remote) < batch; next += pageSize {
				remote = append(remote, unix.RemoteIovec{Base: uintptr(next), Len: 1})
			}
			local := []unix.Iovec{{Base: &buf[0]}}
			local[0].SetLen(len(remote))
			n, err := unix.ProcessVMReadv(pid, local, remote, 0)
			switch {
			case errors.Is(err, unix.EFAULT):
				n = 1 // beyond the end of a file, or unmapped meanwhile
			case err != nil:
				return fmt.Errorf("read memory of process %d at %#x: %w", pid, at, err)
			}
			at += uint64(max(n, 1)) * pageSize
			select {
			case moved <- struct{}{}:
			default:
			}
		}
	}
	return nil
}
