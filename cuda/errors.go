package cuda

import (
	"errors"
	"fmt"
)

// ErrNoDriver is returned where the machine has no NVIDIA driver, or one that
// cannot be loaded.
var ErrNoDriver = errors.New("no NVIDIA driver on this machine")

// ErrTooOld is returned when the driver lacks the checkpoint interface.
var ErrTooOld = errors.New("the NVIDIA driver has no checkpoint interface: 570 or newer is needed")

// Codes of the driver's CUresult that callers tell apart.
const (
	CodeInvalidValue   = 1
	CodeNotInitialized = 3
	CodeNoDevice       = 100
	CodeInvalidDevice  = 101
	CodeOS             = 304
	CodeIllegalState   = 401
	CodeNotReady       = 600
	CodeNotSupported   = 801
)

// Error is the driver's refusal of one operation.
type Error struct {
	Op   string // what was asked for, such as "checkpoint"
	PID  int    // 0 when it was about no process
	Code int    // CUresult
	Name string // such as CUDA_ERROR_NOT_READY; "" when the driver has none
	Text string // the driver's words
}

func (e *Error) Error() string {
	what := e.Op
	if e.PID != 0 {
		what = fmt.Sprintf("%s of process %d", e.Op, e.PID)
	}
	name := e.Name
	if name == "" {
		name = fmt.Sprintf("error %d", e.Code)
	}
	if e.Code == CodeNotReady && e.Op == string(Lock) {
		return fmt.Sprintf("cuda: %s: its GPU work did not end in time (%s)", what, name)
	}
	if e.Text == "" {
		return fmt.Sprintf("cuda: %s: %s", what, name)
	}
	return fmt.Sprintf("cuda: %s: %s (%s)", what, e.Text, name)
}

// CodeOf gives the CUresult in an error, 0 when there is none.
func CodeOf(err error) int {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}
