package cuda

import "time"

// Ops of requests beside the four actions.
const (
	OpState  = "state"
	OpThread = "restore-thread"
	OpInfo   = "info"
	OpWake   = "wake" // see Client.Wake
)

// Request is one line to gpucr-cuda.
type Request struct {
	ID  uint64 `json:"id"`
	Op  string `json:"op"` // an Action or one of the Ops
	PID int    `json:"pid,omitempty"`
	// Timeout bounds Lock; 0 leaves it to the driver.
	Timeout time.Duration `json:"timeout,omitempty"`
	Pairs   []Pair        `json:"pairs,omitempty"`
	// Guard, with Lock, lets gpucr-cuda bring the process back to Running when
	// its standard input ends.
	Guard bool `json:"guard,omitempty"`
	// Stand, with Checkpoint, stops the process until it is restored: see package freeze.
	Stand bool `json:"stand,omitempty"`
	// Waits, with Lock, are processes that do as their child does when it is stopped: they are continued with it.
	Waits []int `json:"waits,omitempty"`
}

// Reply is one line from gpucr-cuda.
type Reply struct {
	ID      uint64   `json:"id"`
	State   State    `json:"state,omitempty"`
	Thread  int      `json:"thread,omitempty"`
	Version int      `json:"version,omitempty"` // CUDA version, 13000 for 13.0
	Library string   `json:"library,omitempty"` // what was loaded
	Devices []Device `json:"devices,omitempty"`
	Refusal *Refusal `json:"refusal,omitempty"`
}

// Refusal is an error on the wire.
type Refusal struct {
	Code   int    `json:"code,omitempty"` // CUresult, 0 when the driver was not reached
	Name   string `json:"name,omitempty"`
	Text   string `json:"text"`
	Absent bool   `json:"absent,omitempty"`  // ErrNoDriver
	TooOld bool   `json:"too_old,omitempty"` // ErrTooOld
}
