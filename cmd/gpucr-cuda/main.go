// Command gpucr-cuda holds NVIDIA's driver for gpucr-fs, which is linked statically and cannot load it. It reads
// requests from its standard input, a JSON object a line, and writes the answers to its standard output; package cuda
// says what they are. It ends with its input, after it has let go every process that is still suspended and that it was
// told to guard.
//
// Signals meant for the program that started it do not end it: it would leave processes suspended.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/driver"
	"github.com/gpucr/gpucr-fs/cuda/freeze"
)

// What traces ends with its thread of this process; Go never ends the first one.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) > 2 {
		fmt.Fprintln(os.Stderr, "gpucr-cuda: it is started by gpucr-fs; its only argument is the path of libcuda.so.1")
		os.Exit(2)
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	path := ""
	if len(os.Args) == 2 {
		path = os.Args[1]
	}
	h := &holder{path: path, guarded: map[int]bool{}, awake: map[int]*freeze.Awake{},
		serves: map[int]int{}}
	if err := h.serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "gpucr-cuda: %v\n", err)
		os.Exit(1)
	}
}

// holder serves one client.
type holder struct {
	path string
	load sync.Once
	lib  *driver.Library
	fail error

	guarded map[int]bool // processes to let go at the end; serve's own
	waits   []int        // see Request; serve's own

	mu    sync.Mutex
	out   *json.Encoder
	awake map[int]*freeze.Awake // processes that run without their GPUs; under mu

	serves map[int]int // the thread in a process that serves the driver's requests; under mu
}

// driver loads and readies the driver once: a quarter of a second, which the client spends on other things.
func (h *holder) driver() (*driver.Library, error) {
	h.load.Do(func() {
		if h.lib, h.fail = driver.Open(h.path); h.fail == nil {
			h.fail = h.lib.Init()
		}
	})
	return h.lib, h.fail
}

func (h *holder) serve(in io.Reader, out io.Writer) error {
	h.out = json.NewEncoder(out)
	var running sync.WaitGroup
	running.Go(func() { h.driver() })
	lines := bufio.NewScanner(in)
	var bad error
	for lines.Scan() {
		var req cuda.Request
		if bad = json.Unmarshal(lines.Bytes(), &req); bad != nil {
			break
		}
		if req.Op == string(cuda.Lock) && req.Guard {
			h.guarded[req.PID] = true
			h.waits = req.Waits
		}
		if req.Op == cuda.OpWake {
			h.guarded[req.PID] = true // who restores it may be killed before it has its GPU
		}
		running.Go(func() {
			rep := h.answer(req)
			rep.ID = req.ID
			h.mu.Lock()
			defer h.mu.Unlock()
			_ = h.out.Encode(rep) // the client may be gone; what it left is cleared up below
		})
	}
	running.Wait()
	return errors.Join(bad, lines.Err(), h.letGo(), h.leave())
}

// letGo brings every guarded process back to Running, all at once: one may have to wait for the one who traces it. One
// that is gone needs nothing.
func (h *holder) letGo() error {
	if h.fail != nil {
		return nil
	}
	var mu sync.Mutex
	var failed []error
	undone := false
	var giving sync.WaitGroup
	for pid := range h.guarded {
		giving.Go(func() {
			did, err := h.giveBack(pid)
			mu.Lock()
			defer mu.Unlock()
			undone, failed = undone || did, append(failed, err)
		})
	}
	giving.Wait()
	if undone {
		failed = append(failed, freeze.ContinueAll(h.waits))
	}
	return errors.Join(failed...)
}

// tries and pause are for a process that somebody else may still trace: a criu whose command was killed.
const (
	tries = 100
	pause = 50 * time.Millisecond
)

// giveBack brings one process back to Running, and tells whether that was needed.
func (h *holder) giveBack(pid int) (did bool, err error) {
	for range tries {
		for !h.isAwake(pid) && freeze.Traced(pid) {
			time.Sleep(pause)
		}
		s, serr := h.state(pid)
		if serr != nil {
			if _, gone := os.Stat(fmt.Sprintf("/proc/%d", pid)); gone != nil || !freeze.Stands(pid) {
				return did, nil
			}
			time.Sleep(pause)
			err = serr
			continue
		}
		did = did || cuda.State(s) != cuda.Running
		if err = h.undo(pid, cuda.State(s)); err == nil {
			return did, nil
		}
		time.Sleep(pause)
	}
	return did, fmt.Errorf("give process %d its GPU back: %w", pid, err)
}

// undo brings a process to Running from where it is.
func (h *holder) undo(pid int, s cuda.State) error {
	if s == cuda.Checkpointed {
		if err := h.restore(pid, nil); err != nil {
			return err
		}
		s = cuda.Locked
	}
	if s == cuda.Locked {
		return h.unlock(pid)
	}
	return nil
}

func (h *holder) answer(req cuda.Request) cuda.Reply {
	if req.Op == cuda.OpWake { // it need not wait for the driver
		if err := h.wake(req.PID); err != nil {
			return cuda.Reply{Refusal: refusal(err)}
		}
		return cuda.Reply{}
	}
	lib, err := h.driver()
	if err != nil {
		return cuda.Reply{Refusal: refusal(err)}
	}
	var rep cuda.Reply
	switch req.Op {
	case string(cuda.Lock):
		err = lib.Lock(req.PID, req.Timeout)
	case string(cuda.Checkpoint):
		err = h.checkpoint(req.PID, req.Stand)
	case string(cuda.Restore):
		pairs := make([]driver.Pair, len(req.Pairs))
		for i, p := range req.Pairs {
			pairs[i] = driver.Pair{From: p.From, To: p.To}
		}
		err = h.restore(req.PID, pairs)
	case string(cuda.Unlock):
		err = h.unlock(req.PID)
	case cuda.OpState:
		var s int
		s, err = h.state(req.PID)
		rep.State = cuda.State(s)
	case cuda.OpThread:
		rep.Thread, err = lib.RestoreThread(req.PID)
	case cuda.OpInfo:
		rep.Library = lib.Path
		if rep.Version, err = lib.Version(); err == nil {
			rep.Devices, err = devices(lib)
		}
	default:
		err = fmt.Errorf("no operation %q: gpucr-fs and gpucr-cuda are of different versions", req.Op)
	}
	if err != nil {
		return cuda.Reply{Refusal: refusal(err)}
	}
	return rep
}

func devices(lib *driver.Library) ([]cuda.Device, error) {
	list, err := lib.Devices()
	devs := make([]cuda.Device, len(list))
	for i, d := range list {
		devs[i] = cuda.Device{UUID: d.UUID, Name: d.Name, Memory: d.Memory}
	}
	return devs, err
}

func refusal(err error) *cuda.Refusal {
	r := &cuda.Refusal{Text: err.Error(), Absent: errors.Is(err, driver.ErrAbsent),
		TooOld: errors.Is(err, driver.ErrTooOld)}
	if res := (*driver.Result)(nil); errors.As(err, &res) {
		r.Code, r.Name, r.Text = res.Code, res.Name, res.Text
	}
	return r
}
