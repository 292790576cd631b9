// Package budget holds parsers of bytes from outside to what they may take in memory.
package budget

import (
	"runtime"
	"testing"
)

// What parsing n bytes may allocate: Free + Factor·n, what is garbage at once included.
const (
	Free   = 64 << 20
	Factor = 4
)

// Watch returns a function that fails t when more was allocated since than parsing n bytes may take:
//
//	defer budget.Watch(t, len(b))()
func Watch(t testing.TB, n int) func() {
	t.Helper()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	return func() {
		t.Helper()
		var after runtime.MemStats
		runtime.ReadMemStats(&after)
		if took, may := after.TotalAlloc-before.TotalAlloc, uint64(Free+Factor*n); took > may {
			t.Errorf("%d bytes of input took %d of memory, more than %d", n, took, may)
		}
	}
}
