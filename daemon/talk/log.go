package talk

import (
	"io"
	"sync"
)

// Log passes a log on to the caller, as lines with LogLine, until End. Several goroutines may use it.
type Log struct {
	out io.Writer
	mu  sync.Mutex
	end bool
}

// NewLog makes one that writes to the operation's output.
func NewLog(out io.Writer) *Log { return &Log{out: out} }

func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end {
		return len(b), nil
	}
	return len(b), Say(l.out, LogLine{Log: string(b)})
}

// Say says something else to the caller, in between.
func (l *Log) Say(v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Say(l.out, v)
}

// End drops what is logged from now on.
func (l *Log) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = true
}
