package prefetch

import (
	"slices"
	"sync"
)

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
	if len(r.profile.Touches) >= maxTouches {
		return // more than a profile holds
	}
	file, ok := r.numbers[name]
	if !ok {
		if len(r.profile.Files) >= maxProfileFiles || len(name) > maxNameBytes {
			return
		}
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
		if k := len(r.profile.Touches) - 1; k >= 0 && r.profile.Touches[k].File == file &&
			r.profile.Touches[k].End() == at {
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

// recordBytes is what a demand brings while a profile is recorded: what it
// brings is not asked for again, and so goes into the profile as a whole.
const recordBytes = 64 << 10

// records reports whether the demands are to make a profile.
func (q *Queue) records() bool { return q.opts.Recorder != nil && q.fills }

// window returns how much a demand brings while a profile is recorded: twice as
// much as the one before when it goes on where that ended. Preconditions: mu is
// held.
func (q *Queue) window(u unitRef) int64 {
	for _, t := range q.tails {
		if t.end == u {
			return min(2*t.bytes, q.opts.RunBytes)
		}
	}
	return min(recordBytes, q.opts.RunBytes)
}

// tail is where the run of a recorded demand ended.
type tail struct {
	end   unitRef
	bytes int64
}

// maxTails is how many sequences of demands are told apart.
const maxTails = 16

// record notes what a demand brings. Preconditions: mu is held.
func (q *Queue) record(u unitRef, r run) {
	for _, p := range r.parts {
		q.opts.Recorder.Touch(q.opts.Names[p.File], p.Off, p.Len)
	}
	t := tail{unitRef{u.file, int((r.End() + UnitBytes - 1) / UnitBytes)}, max(r.Len, recordBytes)}
	if i := slices.IndexFunc(q.tails, func(t tail) bool { return t.end == u }); i >= 0 {
		q.tails[i] = t
		return
	}
	if len(q.tails) == maxTails {
		q.tails = q.tails[1:]
	}
	q.tails = append(q.tails, t)
}
