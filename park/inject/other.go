//go:build !linux || !amd64

package inject

import "errors"

// Task is a process all of whose threads stand still.
type Task struct{ PID int }

var errElsewhere = errors.New("system calls can be injected on Linux on x86-64 alone")

// Stop refuses.
func Stop(int, Options, func(*Task) error) error { return errElsewhere }

// Detour makes something else of a system call.
type Detour struct{}

// NewHuge refuses.
func NewHuge(int) (*Detour, error) { return nil, errElsewhere }

// NewLater refuses.
func NewLater(int) (*Detour, error) { return nil, errElsewhere }

// GivingBack tells that no detour has left such a thread.
func GivingBack(int) bool { return false }

// At has nothing to do.
func (d *Detour) At(int) bool { return false }

// Call refuses.
func (t *Task) Call(uintptr, ...uint64) (uint64, error) { return 0, errElsewhere }

// Read refuses.
func (t *Task) Read(uint64, []byte) error { return errElsewhere }

// Hold is a process that waits.
type Hold struct{}

// Held is what has to be known of it.
type Held struct {
	Data     uint64 `json:"data"`
	DataSize uint64 `json:"data_size"`
	Code     uint64 `json:"code"`
	CodeSize uint64 `json:"code_size"`
}
