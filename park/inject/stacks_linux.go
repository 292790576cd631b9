//go:build amd64

package inject

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// Where the threads of a process are, and where they come back to when the handlers of signals are over.

const (
	// maxStack is how much of a stack is looked through, in bytes.
	maxStack = 4 << 20
	// maxLook is how long a look may take: a thread of the process waits for it.
	maxLook = 20 * time.Millisecond
	// maxStacks is how many stacks of one thread are: its own, and alternate ones of handlers (sigaltstack(2)).
	maxStacks = 16
)

// A signal's frame on a stack holds the registers that the thread goes on with: struct sigcontext_64 of
// asm/sigcontext.h. segments are the 8 bytes of CS, GS, FS and SS of a 64-bit program. RIP stands two words before, RSP
// three.
const (
	segments     = 0x002b_0000_0000_0033
	instruction  = 2 * 8
	stackPointer = 3 * 8
)

// avoided gives those of some places in a process's code, of size bytes each, where no thread is, and where none comes
// back to from a signal's handler. Instructions in these places call nothing, which would be another way back. It gives
// none where a thread may be in any: one that runs, one in code that may lead there (see leads), and one whose stacks
// cannot be read, or are large. It gives none either where it would take longer than maxLook.
func avoided(pid int, places []uint64, size uint64) []uint64 {
	if len(places) == 0 {
		return nil
	}
	there, err := threadIDs(pid)
	if err != nil {
		return nil
	}
	all, err := Mappings(pid) // with the stacks of all these threads
	if err != nil {
		return nil
	}
	free, end := slices.Clone(places), time.Now().Add(maxLook)
	first, behind := slices.Min(places), slices.Max(places)+size
	leave := func(addr uint64) {
		if addr < first || addr >= behind {
			return
		}
		free = slices.DeleteFunc(free, func(at uint64) bool { return addr-at < size })
	}
	// This way no page is waited for that userfaultfd(2) has to bring: the read fails.
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil
	}
	defer mem.Close()
	for _, tid := range there {
		l := look{pid, tid, all, mem, end, leave}
		if !l.comesTo() && !ended(pid, tid) {
			return nil
		}
	}
	now, err := threadIDs(pid)
	if err != nil || slices.ContainsFunc(now, func(tid int) bool { return !slices.Contains(there, tid) }) {
		return nil // one that was made in such a place may still be there
	}
	return free
}

// look is what it takes to look at one thread.
type look struct {
	pid, tid int
	all      []Mapping
	mem      io.ReaderAt       // of the process
	end      time.Time         // when it has to be over
	f        func(addr uint64) // is given all that may be an address where the thread comes back to
}

// comesTo gives where the thread is, and where it may come back to. It tells whether that is known.
func (l *look) comesTo() bool {
	path := fmt.Sprintf("/proc/%d/task/%d/syscall", l.pid, l.tid)
	before, err := os.ReadFile(path)
	sp, pc, ok := position(string(before))
	if err != nil || !ok {
		return false
	}
	if sp == 0 && pc == 0 {
		return true // it is io_uring's, in the kernel alone
	}
	if leads(l.all, pc) {
		return false
	}
	l.f(pc)
	if !l.words(sp) {
		return false
	}
	// One that went on meanwhile may have come from a handler whose frame had not been looked at yet.
	after, err := os.ReadFile(path)
	return err == nil && string(after) == string(before)
}

// position reads a line of proc_pid_syscall(5): NUMBER ARGUMENTS... SP PC, or -1 SP PC.
func position(line string) (sp, pc uint64, ok bool) {
	f := strings.Fields(line)
	if len(f) < 3 {
		return 0, 0, false // "running"
	}
	sp, err := strconv.ParseUint(f[len(f)-2], 0, 64)
	pc, err2 := strconv.ParseUint(f[len(f)-1], 0, 64)
	return sp, pc, err == nil && err2 == nil
}

// leads tells an address of code that may lead anywhere: of no file, as a Hold and criu have it, or where the
// instructions of a call by Task are, which may be left there by one that was killed.
func leads(all []Mapping, pc uint64) bool {
	m, ok := holds(all, pc)
	return !ok || m.Path == "" || strings.HasPrefix(m.Path, "/memfd:") || m.End-pc <= callRoom
}

// holds gives the mapping that holds an address.
func holds(all []Mapping, addr uint64) (m Mapping, ok bool) {
	i := sort.Search(len(all), func(i int) bool { return addr < all[i].End })
	if i == len(all) || addr < all[i].Start {
		return m, false
	}
	return all[i], true
}

// words gives each word of the stack that is in use from sp on, and of those stacks where handlers' frames say that the
// thread was before. It tells whether these were all: the thread began on one of them.
func (l *look) words(sp uint64) (began bool) {
	for stacks, i := []uint64{sp &^ 7}, 0; i < len(stacks); i++ {
		from := stacks[i]
		text, first, ok := l.stack(from)
		if !ok || time.Now().After(l.end) {
			return false
		}
		began = began || first
		for at := 0; at < len(text); at += 8 {
			word := binary.LittleEndian.Uint64(text[at:])
			l.f(word)
			if word != segments || at < stackPointer {
				continue
			}
			if leads(l.all, binary.LittleEndian.Uint64(text[at-instruction:])) {
				return false
			}
			before := binary.LittleEndian.Uint64(text[at-stackPointer:]) &^ 7
			if before-from < uint64(len(text)) || slices.Contains(stacks, before) {
				continue
			}
			if stacks = append(stacks, before); len(stacks) > maxStacks {
				return false
			}
		}
	}
	return began
}

// stack reads one from an address on: to the block that the C library has of the thread above the stack on which it
// began, or to the end of the mappings. There may be several: each part of a stack may have advice of its own. first
// tells that the thread began there: its block was found, or the stack is the program's first.
func (l *look) stack(from uint64) (text []byte, first, ok bool) {
	const piece = 64 << 10
	end := from
	for m, ok := holds(l.all, end); ok && m.Perms[:2] == "rw"; m, ok = holds(l.all, end) {
		end, first = m.End, m.Path == "[stack]"
	}
	for at := from; at < end && at-from < maxStack; at = from + uint64(len(text)) {
		next := min(end, (at+piece)&^(piece-1))
		text = append(text, make([]byte, next-at)...)
		n, err := l.mem.ReadAt(text[at-from:], int64(at)) // a page may be kept from use behind the thread's block
		for i := int(max(at-from, blockSize) - blockSize); i+blockSize <= int(at-from)+n; i += 8 {
			if l.isBlock(text[i:], from+uint64(i)) {
				return text[:i], true, true
			}
		}
		if err != nil {
			return nil, false, false
		}
	}
	return text, first, len(text) > 0 && from+uint64(len(text)) == end
}

// What is known of the block that the C library has of each thread: struct pthread of glibc's nptl/descr.h, which
// begins with tcbhead_t of sysdeps/x86_64/nptl/tls.h. Its own address stands in it twice, and the thread's id.
const (
	blockSelf = 16
	blockID   = 0x2d0
	blockSize = blockID + 8
)

// isBlock tells the block of the thread. Another one may lie on its stack: what is left of a thread that had the memory
// before.
func (l *look) isBlock(text []byte, at uint64) bool {
	return binary.LittleEndian.Uint64(text) == at && binary.LittleEndian.Uint64(text[blockSelf:]) == at &&
		binary.LittleEndian.Uint32(text[blockID:]) == uint32(Innermost(l.tid))
}
