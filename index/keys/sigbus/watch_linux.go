package sigbus

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"
)

// maxMarkers bounds how many files can be watched at once: the handler walks a table of fixed size. A process has one
// store open as a rule.
const maxMarkers = 256

var (
	// markers are zero-terminated paths, read by the handler. A slot is nil or stays valid while it is set.
	markers [maxMarkers]unsafe.Pointer
	// faults counts the pages that were replaced; written by the handler.
	faults uint64
	// next is the handler that was there before: Go's.
	//lint:ignore U1000 the handler reads it
	next uintptr

	mu        sync.Mutex
	installed bool
)

// Watch is one marker under watch. Close it when its file no longer matters.
type Watch struct {
	slot int    // in markers; -1 without a marker
	seen uint64 // faults before it began
}

// errMany: a limit of the table, which only a test with hundreds of open stores could reach.
var errMany = errors.New("too many mapped indexes in one process")

// New has marker, a path, removed at the first fault of the process; "" only counts.
func New(marker string) (*Watch, error) {
	mu.Lock()
	defer mu.Unlock()
	if !installed {
		if err := install(); err != nil {
			return nil, err
		}
		installed = true
	}
	w := &Watch{slot: -1, seen: atomic.LoadUint64(&faults)}
	if marker == "" {
		return w, nil
	}
	path := append([]byte(marker), 0)
	for i := range markers {
		if atomic.CompareAndSwapPointer(&markers[i], nil, unsafe.Pointer(&path[0])) {
			w.slot = i
			return w, nil
		}
	}
	return nil, errMany
}

// Faulted says whether the process met a fault since New. It may have been in somebody else's mapping: nothing here
// tells whose.
func (w *Watch) Faulted() bool { return atomic.LoadUint64(&faults) != w.seen }

// Close forgets the marker.
func (w *Watch) Close() {
	mu.Lock()
	defer mu.Unlock()
	if w.slot >= 0 {
		atomic.StorePointer(&markers[w.slot], nil)
		w.slot = -1
	}
}
