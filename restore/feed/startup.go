package feed

import (
	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// startupRecorder passes everything on, and ends the record with the first sweep: when the processes run.
type startupRecorder struct {
	uffd.Supplier
	recorder *prefetch.Recorder
}

func (b startupRecorder) Sweep(ranges []prefetch.Range) {
	b.recorder.Stop()
	b.Supplier.Sweep(ranges)
}
