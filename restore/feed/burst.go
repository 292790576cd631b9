package feed

import (
	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// burst passes everything on, and ends the record with the first sweep: when the processes run.
type burst struct {
	uffd.Supplier
	recorder *prefetch.Recorder
}

func (b burst) Sweep(ranges []prefetch.Range) {
	b.recorder.Stop()
	b.Supplier.Sweep(ranges)
}
