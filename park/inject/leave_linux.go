//go:build amd64

package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Held is what has to be known of a hold when it is over, in this process or another.
type Held struct {
	Data     uint64 `json:"data"`
	DataSize uint64 `json:"data_size"`
	Code     uint64 `json:"code"`
	CodeSize uint64 `json:"code_size"`
}

// Held tells where a hold is.
func (h *Hold) Held() Held { return Held{h.Data, h.DataSize, h.Code, h.CodeSize} }

// leaveRounds is how often it is looked whether all threads have left a hold's code.
const leaveRounds = 20

// Leave waits until a process has carried out its plan, limit at most, and takes the memory of the hold from it. A
// thread that is still in its code, or in the handler of a signal that comes back there, leaves the memory there: some
// pages, and no error.
func (h Held) Leave(pid int, limit time.Duration, o Options) error {
	word := func(at uint64) (int64, error) {
		var b [8]byte
		t := Task{PID: pid}
		err := t.Read(h.Data+at, b[:])
		return int64(binary.LittleEndian.Uint64(b[:])), err
	}
	if m, err := word(holdMagic); err != nil || m != magic {
		return fmt.Errorf("process %d has nothing of a hold at %x: %w", pid, h.Data, ErrGone)
	}
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Microsecond) {
		state, err := word(holdState)
		if err != nil {
			return err
		}
		if state == Done {
			break
		}
		if state == Failed {
			result, _ := word(holdResult)
			return fmt.Errorf("process %d was ended: %w", pid, unix.Errno(-result))
		}
		if time.Now().After(end) {
			return refusal(pid, "it does not come to its plan in %v", limit)
		}
	}
	count, err := word(holdCount)
	if err != nil {
		return err
	}
	for range leaveRounds {
		marked := true
		for i := range uint64(count) {
			mark, err := word(holdBlocks + i*holdBlock + blockMark)
			left, err2 := word(holdBlocks + i*holdBlock + blockLeft)
			if err := errors.Join(err, err2); err != nil {
				return err
			}
			marked = marked && mark == left
		}
		if !marked {
			time.Sleep(time.Millisecond)
			continue
		}
		left := true
		err := Stop(pid, o, func(t *Task) error {
			for _, th := range t.threads {
				left = left && th.regs.Rip-h.Code >= h.CodeSize
			}
			if !left {
				return nil
			}
			for at, size := range map[uint64]uint64{h.Data: h.DataSize, h.Code: h.CodeSize} {
				if _, err := t.Call(unix.SYS_MUNMAP, at, size); err != nil {
					return err
				}
			}
			return nil
		})
		if left || err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}
