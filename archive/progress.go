package archive

import "sync"

// teller adds up the bytes of concurrent workers. mu guards done and serialises tell.
type teller struct {
	mu    sync.Mutex
	done  int64
	total int64
	tell  func(Progress)
}

func (t *teller) add(file string, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	t.tell(Progress{Done: t.done, Total: t.total, File: file})
}
