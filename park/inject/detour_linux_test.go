//go:build amd64

package inject

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mapper is a process whose threads map and unmap memory, see src/mapper.c.
type mapper struct {
	*process
	counted int
}

// Counts of a mapper, and what they tell where they are not 0.
const (
	mapperErrors = 32
	mapperSignal = 38
	mapperStays  = 39 // how many handlers of SIGUSR2, SIGPIPE and SIGHUP go on with the rounds
	mapperStay   = 40 // not 0: they do
)

var mapperFinds = []string{"a register changed", "a flag changed", "memory is not new, or not to be had",
	"an address is not free", "a forked child has the memory", "other signals are blocked"}

func startMapper(t *testing.T, count int, signals, forks string) *mapper {
	t.Helper()
	return &mapper{launch(t, mapping, strconv.Itoa(count), "64", signals, forks), count}
}

func (m *mapper) count(i int) uint64 {
	m.t.Helper()
	text, err := os.ReadFile(m.path)
	must(m.t, err)
	return binary.LittleEndian.Uint64(text[8*i:])
}

// goesOn waits until each thread has made two more rounds, and fails if one has found something wrong.
func (m *mapper) goesOn() {
	m.t.Helper()
	for i := range m.counted {
		before := m.count(i)
		until(m.t, func() bool {
			select {
			case <-m.ended:
				m.t.Fatal("the process has ended")
			default:
			}
			return m.count(i) > before+1
		})
	}
	for i, what := range mapperFinds {
		if n := m.count(mapperErrors + i); n > 0 {
			m.t.Errorf("%s: %d times", what, n)
		}
	}
}

// detours has a thread of a process go through a detour.
func detours(pid, tid int, d *Detour) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the tracer
		done <- trace(pid, tid, d)
	}()
	return <-done
}

func trace(pid, tid int, d *Detour) error {
	if err := unix.PtraceSeize(tid); err != nil {
		return err
	}
	if err := unix.PtraceInterrupt(tid); err != nil {
		return err
	}
	t := &Task{PID: pid, end: time.Now().Add(timeout)}
	th := &thread{tid: tid}
	if err := t.standstill(th); err != nil {
		return err
	}
	after := 0
	for sig := 0; ; {
		if err := unix.PtraceSyscall(tid, sig); err != nil {
			return err
		}
		s, err := t.wait(tid)
		if err != nil {
			return err
		}
		switch sig = int(s.StopSignal()); {
		case sig == int(trapSystem):
			more := d.At(tid)
			if after += min(d.made, 1); !more || after > 20 { // it was asked about the calls of the detour, too
				return unix.PtraceDetach(tid)
			}
			sig = 0
		case int(s)>>16 != 0:
			sig = 0
		}
	}
}

// last gives the thread that a process made last, but for one that gives memory back.
func last(pid int) int { return lastBut(pid, 0) }

// lastBut gives the thread after which a process made n others. Their ids need not follow each other.
func lastBut(pid, n int) int {
	tids, _ := threadIDs(pid)
	tids = slices.DeleteFunc(tids, func(tid int) bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", pid, tid))
		return string(comm) == laterName+"\n"
	})
	slices.Sort(tids)
	if n >= len(tids) {
		return 0
	}
	return tids[len(tids)-1-n]
}

var detourKinds = map[string]func(int) (*Detour, error){"huge": NewHuge, "later": NewLater}

// Threads that go through detours find nothing changed by it, while others map and unmap memory as well, and signals
// are handled all the time.
func TestDetours(t *testing.T) {
	for kind, makes := range detourKinds {
		for _, signals := range []string{"0", "1"} {
			for _, n := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s %d %s", kind, n, signals), func(t *testing.T) {
					m := startMapper(t, n, signals, "0")
					for range *rounds/8 + 1 {
						d, err := makes(m.pid)
						must(t, err)
						must(t, detours(m.pid, last(m.pid), d))
						if d.made == 0 {
							t.Fatal("there was no detour")
						}
						m.goesOn()
						if n > 1 { // where the others are is not known while they run
							m.clear(d)
						}
					}
					if signals == "1" && m.count(mapperSignal) == 0 {
						t.Error("no signal was handled")
					}
				})
			}
		}
	}
}

// clear takes away what detours have left in all of d's places, when no thread is in one.
func (m *mapper) clear(d *Detour) {
	m.t.Helper()
	until(m.t, func() bool { return !strings.Contains(m.threads(), laterName) })
	must(m.t, Stop(m.pid, Options{}, func(task *Task) error {
		for _, at := range d.places {
			if err := task.put(at, make([]byte, detourSize)); err != nil {
				return err
			}
		}
		return nil
	}))
}

// threads gives the names of a mapper's threads, a line each.
func (m *mapper) threads() (names string) {
	paths, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", m.pid))
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		names += string(text)
	}
	return names
}

// Memory that a thread did not wait for is given back, and no forked child has it.
func TestLaterIsGivenBack(t *testing.T) {
	m := startMapper(t, 1, "0", "1")
	tid := lastBut(m.pid, 1) // the last one forks
	made := 0
	for range *rounds {
		d, err := NewLater(m.pid)
		must(t, err)
		must(t, detours(m.pid, tid, d))
		made += d.made
		m.goesOn()
		m.clear(d)
	}
	if made < *rounds {
		t.Errorf("%d detours in %d rounds", made, *rounds)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(text), "\nVmSize:")
	var kib int
	fmt.Sscan(rest, &kib)
	if kib > 400<<10 { // the mapping of a round, and the arenas of the threads
		t.Errorf("%d MiB are still mapped", kib>>10)
	}
}

// The tracer is killed at each of its steps: the thread makes its call, or what stands for it.
func TestDetourKilled(t *testing.T) {
	for kind := range detourKinds {
		m := startMapper(t, 1, "1", "0")
		for at := 1; at <= 2; at++ {
			for range 5 {
				killed(t, m.pid, at, kind)
				m.goesOn()
				d, err := detourKinds[kind](m.pid)
				must(t, err)
				m.clear(d)
			}
		}
		d, err := detourKinds[kind](m.pid)
		must(t, err)
		must(t, detours(m.pid, last(m.pid), d))
		if d.made == 0 {
			t.Error("there is no place left")
		}
		m.goesOn()
	}
}

// Where memory is locked, or limited, a thread makes its own call: more would be locked, or ends the process.
func TestDetourRefused(t *testing.T) {
	for name, limit := range map[string]func(*mapper){"locked": (*mapper).lock, "limited": (*mapper).limit} {
		t.Run(name, func(t *testing.T) {
			m := startMapper(t, 1, "0", "0")
			limit(m)
			d, err := NewLater(m.pid)
			must(t, err)
			tid := last(m.pid)
			ended := make(chan error, 1)
			go func() { ended <- detours(m.pid, tid, d) }()
			m.goesOn()
			if name == "locked" {
				must(t, <-ended) // it is not asked again
			} else {
				must(t, syscall.Kill(m.pid, syscall.SIGKILL))
				<-ended
			}
			if d.made > 0 {
				t.Error("there was a detour")
			}
		})
	}
}

// lock has a process lock a page.
func (m *mapper) lock() {
	must(m.t, Stop(m.pid, Options{}, func(task *Task) error {
		at, err := task.Call(unix.SYS_MMAP, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, anonymous, noFD, 0)
		if err != nil {
			return err
		}
		_, err = task.Call(unix.SYS_MLOCK, at, pageSize)
		return err
	}))
}

// limit puts a process into a cgroup that bears its memory, and not once more.
func (m *mapper) limit() {
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(root); err != nil {
		root, file = "/sys/fs/cgroup", "memory.max"
	}
	dir := filepath.Join(root, fmt.Sprintf("gpucr-inject-%d", m.pid))
	must(m.t, os.Mkdir(dir, 0o755))
	m.t.Cleanup(func() {
		syscall.Kill(m.pid, syscall.SIGKILL)
		<-m.ended
		until(m.t, func() bool { return os.Remove(dir) == nil })
	})
	must(m.t, os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(100<<20)), 0))
	must(m.t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(m.pid)), 0))
	m.goesOn() // what it maps counts there now
}

// The instructions have room, whatever a thread's registers hold.
func TestDetourSizes(t *testing.T) {
	m := startMapper(t, 1, "0", "0")
	for kind, makes := range detourKinds {
		d, err := makes(m.pid)
		must(t, err)
		r := unix.PtraceRegs{Rcx: noFD, Rdx: noFD, Rdi: noFD, R8: noFD, R9: noFD, R10: noFD, R11: noFD, R12: noFD,
			R13: noFD, R14: noFD, R15: noFD, Rip: noFD, Rsi: noFD >> 1}
		if n := len(d.kind.replace(noFD>>1, &r)); n > detourSize {
			t.Errorf("%s: %d bytes, at most %d are meant", kind, n, detourSize)
		}
	}
}

// A place is taken again when no thread is in its detour any more.
func TestDetourPlaceIsFree(t *testing.T) {
	for _, makes := range detourKinds {
		for _, signals := range []string{"0", "1"} {
			m := startMapper(t, 1, signals, "0")
			m.takesAgain(makes, last(m.pid))
		}
	}
}

// Where a signal's handler comes back to a detour, no other one takes its place, though the handler's stack is the
// thread's own or another one, or another handler runs on top of it.
func TestDetourPlaceIsKept(t *testing.T) {
	for name, signals := range map[string][]unix.Signal{"own stack": {unix.SIGUSR2}, "other stack": {unix.SIGHUP},
		"other on own": {unix.SIGUSR2, unix.SIGHUP}, "own on own": {unix.SIGUSR2, unix.SIGUSR2},
		"own stack with a hole": {unix.SIGPIPE}, "other on own with a hole": {unix.SIGPIPE, unix.SIGHUP}} {
		for kind, makes := range detourKinds {
			t.Run(kind+" "+name, func(t *testing.T) { keepsPlace(t, makes, signals) })
		}
	}
}

func keepsPlace(t *testing.T, makes func(int) (*Detour, error), signals []unix.Signal) {
	m := startMapper(t, 1, "0", "0")
	tid := last(m.pid)
	kept := m.inPlace(makes, tid, func() {
		m.put(mapperStay, 1)
		must(t, unix.Tgkill(m.pid, tid, signals[0])) // handled at the end of the call
	})
	for i, sig := range signals {
		if i > 0 {
			must(t, unix.Tgkill(m.pid, tid, sig))
		}
		until(t, func() bool { return m.count(mapperStays) == uint64(i)+1 })
	}
	m.keeps(kept, makes, tid)
	m.endStay()
	m.takesAgain(makes, tid)
}

// inPlace has a thread go through a detour, calls f when its registers are set for that, and gives the place.
func (m *mapper) inPlace(makes func(int) (*Detour, error), tid int, f func()) (kept uint64) {
	m.t.Helper()
	d, err := makes(m.pid)
	must(m.t, err)
	d.Step = func(name string) {
		if name != "registers set" || kept != 0 {
			return
		}
		var r unix.PtraceRegs
		must(m.t, unix.PtraceGetRegs(tid, &r))
		kept = d.places[0]
		if r.Rip-kept >= detourSize {
			m.t.Errorf("it comes back to %x, not to %x", r.Rip, kept)
		}
		f()
	}
	must(m.t, detours(m.pid, tid, d))
	return kept
}

// stoppedInPlace starts a mapper, and stops it with its last thread in a detour.
func stoppedInPlace(t *testing.T, count int, makes func(int) (*Detour, error)) (m *mapper, tid int, kept uint64) {
	t.Helper()
	m = startMapper(t, count, "0", "0")
	tid = last(m.pid)
	return m, tid, m.inPlace(makes, tid, func() { must(t, unix.Kill(m.pid, unix.SIGSTOP)) })
}

// keeps has a thread try detours, and looks whether a place stays as it is.
func (m *mapper) keeps(kept uint64, makes func(int) (*Detour, error), tid int) {
	m.t.Helper()
	was, now := make([]byte, detourSize), make([]byte, detourSize)
	must(m.t, (&Task{PID: m.pid}).Read(kept, was))
	for range 8 {
		d, err := makes(m.pid)
		must(m.t, err)
		must(m.t, detours(m.pid, tid, d))
	}
	must(m.t, (&Task{PID: m.pid}).Read(kept, now))
	if !bytes.Equal(was, now) {
		m.t.Error("its place was taken")
	}
}

// endStay ends the handlers of a mapper, and waits until it is where it was.
func (m *mapper) endStay() {
	m.t.Helper()
	m.put(mapperStay, 0)
	m.goesOn()
	until(m.t, func() bool { return m.count(mapperStays) == 0 })
	m.goesOn()
}

// A thread that is in a detour, and then in the code of a hold, comes back to the detour, though a signal's handler
// runs before that.
func TestDetourPlaceIsKeptInHold(t *testing.T) {
	for kind, makes := range detourKinds {
		t.Run(kind, func(t *testing.T) {
			m, tid, kept := stoppedInPlace(t, 1, makes)
			h, err := hold(m.pid, Options{})
			must(t, err)
			m.put(mapperStay, 1)
			must(t, unix.Kill(m.pid, unix.SIGCONT))
			must(t, unix.Tgkill(m.pid, tid, unix.SIGUSR2))
			must(t, h.Close())
			until(t, func() bool { return m.count(mapperStays) == 1 })
			must(t, h.Held().Leave(m.pid, timeout, Options{}))
			m.keeps(kept, makes, tid)
			m.endStay()
		})
	}
}

// The same where it is in the instructions of a call, whose tracer was killed.
func TestDetourPlaceIsKeptInCall(t *testing.T) {
	for kind, makes := range detourKinds {
		t.Run(kind, func(t *testing.T) {
			m, tid, kept := stoppedInPlace(t, 2, makes)
			killed(t, m.pid, 2, "call") // its registers are set
			until(t, func() bool {
				text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", m.pid, tid))
				return strings.Contains(string(text), ") T ") // by nobody
			})
			m.keeps(kept, makes, lastBut(m.pid, 1))
			must(t, unix.Kill(m.pid, unix.SIGCONT))
			m.goesOn()
		})
	}
}

// takesAgain has a thread go through detours until some place was taken again.
func (m *mapper) takesAgain(makes func(int) (*Detour, error), tid int) {
	m.t.Helper()
	for i, rounds := 0, 1; i < rounds; i++ {
		until(m.t, func() bool { // a machine with much to do may need more time than a look at all stacks may take
			d, err := makes(m.pid)
			must(m.t, err)
			must(m.t, detours(m.pid, tid, d))
			rounds = len(d.places) + 2
			return d.made > 0
		})
		m.goesOn()
	}
}

// put sets a count of a mapper's.
func (m *mapper) put(i int, v uint64) {
	m.t.Helper()
	f, err := os.OpenFile(m.path, os.O_RDWR, 0)
	must(m.t, err)
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, v), int64(8*i))
	must(m.t, errors.Join(err, f.Close()))
}
