package drafts

// What tests look at, and do, inside of a file of a draft.

// CutAt makes a chunk of an empty file end at each of these offsets, which ascend.
func (f *DraftFile) CutAt(cuts []int64) {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	f.n.content.cuts = cuts
}

// CloseEdited has all but so many chunks and runs encoded, as if more had been overwritten than is kept.
func (f *DraftFile) CloseEdited(limit int) error {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	return f.n.content.closeEdited(limit)
}

// Segments gives the number of closed segments, and that of the runs behind them.
func (f *DraftFile) Segments() (closed, tail int) {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	return len(f.n.content.closed), len(f.n.content.tail.Runs)
}
