package prefetch

import "sync"

// Recorder makes the profile of a restore: the order in which pages of files
// were first touched.
type Recorder struct {
	mu      sync.Mutex
	numbers map[string]int
	seen    map[touch]struct{}
	profile Profile
	stopped bool
}

type touch struct {
	file int
	page int64
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder {
	return &Recorder{numbers: make(map[string]int), seen: make(map[touch]struct{})}
}

// Touch notes that somebody needed n bytes of a file from off on.
func (r *Recorder) Touch(name string, off, n int64) {
	if n <= 0 || off < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	file, ok := r.numbers[name]
	if !ok {
		file = len(r.profile.Files)
		r.numbers[name] = file
		r.profile.Files = append(r.profile.Files, name)
	}
	for page := off / PageSize; page <= (off+n-1)/PageSize; page++ {
		t := touch{file, page}
		if _, ok := r.seen[t]; ok {
			continue
		}
		r.seen[t] = struct{}{}
		at := page * PageSize
		if k := len(r.profile.Touches) - 1; k >= 0 && r.profile.Touches[k].File == file && r.profile.Touches[k].End() == at {
			r.profile.Touches[k].Len += PageSize
			continue
		}
		r.profile.Touches = append(r.profile.Touches, Range{file, at, PageSize})
	}
}

// Stop ends the record: later touches are not noted.
func (r *Recorder) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
}

// Profile returns what was touched so far.
func (r *Recorder) Profile() *Profile {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &Profile{append([]string(nil), r.profile.Files...), append([]Range(nil), r.profile.Touches...)}
}
