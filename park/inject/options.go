package inject

import (
	"errors"
	"fmt"
	"time"
)

// ErrGone tells that the process ended.
var ErrGone = errors.New("the process has ended")

// Options of Stop. The zero value serves.
type Options struct {
	// Limit bounds how long the threads are waited for until they stop; 0: 5 s.
	Limit time.Duration
	// Step, nil for none, is called after each step that changes the process, by its name. Tests end the tracer
	// there.
	Step func(name string)
}

const defaultLimit = 5 * time.Second

func (o *Options) step(name string) {
	if o.Step != nil {
		o.Step(name)
	}
}

// refusal is why a process's threads can make no calls.
func refusal(pid int, format string, args ...any) error {
	return fmt.Errorf("inject into process %d: %s", pid, fmt.Sprintf(format, args...))
}
