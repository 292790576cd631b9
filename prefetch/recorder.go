package prefetch

import "sync"

// Recorder keeps the order in which the pages of files were first touched.
type Recorder struct {
	mu      sync.Mutex
	seen    map[page]struct{}
	touches []Range
}

type page struct {
	file int
	no   int64
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder { return &Recorder{seen: make(map[page]struct{})} }

// Touch notes that somebody needed a range.
func (r *Recorder) Touch(t Range) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for off := t.Off &^ (PageSize - 1); off < t.End(); off += PageSize {
		p := page{t.File, off / PageSize}
		if _, ok := r.seen[p]; ok {
			continue
		}
		r.seen[p] = struct{}{}
		if n := len(r.touches) - 1; n >= 0 && r.touches[n].File == t.File && r.touches[n].End() == off {
			r.touches[n].Len += PageSize
			continue
		}
		r.touches = append(r.touches, Range{t.File, off, PageSize})
	}
}

// Touches returns the ranges touched so far, in order, without overlap.
func (r *Recorder) Touches() []Range {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Range(nil), r.touches...)
}
