package lifecycle

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// LogFile is an append-only file bounded to twice its limit: the full one becomes NAME.1, in place of the one before.
// Safe for concurrent use.
type LogFile struct {
	path  string
	limit int64 // bytes

	mu   sync.Mutex
	f    *os.File
	size int64
}

// OpenLogFile opens or makes the file at path, with mode 0600.
func OpenLogFile(path string, limit int64) (*LogFile, error) {
	l := &LogFile{path: path, limit: limit}
	return l, l.open()
}

func (l *LogFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open the log: %w", err)
	}
	l.f, l.size = f, st.Size()
	return nil
}

// Write appends one record, whole.
func (l *LogFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > l.limit {
		l.turn()
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

// turn begins a new file, where that can be done: better a log too long than none. Preconditions: l.mu is held.
func (l *LogFile) turn() {
	old := l.f
	// Nothing is at the path where the file was renamed before and no new one could be opened.
	if err := os.Rename(l.path, l.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if l.open() == nil {
		old.Close()
	}
}

// Close closes the file.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}
