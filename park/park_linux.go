//go:build amd64

package park

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/park/inject"
)

// Parked is a process that has no rings, and waits until it may make them anew.
type Parked struct {
	Note
	pid  int
	o    inject.Options
	hold *inject.Hold
}

// Park takes the rings of a process away. It runs on, with them, when Unpark is called or this process ends. family
// are the processes of its tree.
func Park(pid int, family []int, o inject.Options) (_ *Parked, err error) {
	p := &Parked{pid: pid, o: o}
	err = retry(func() error {
		return inject.Stop(pid, o, func(t *inject.Task) error { return p.park(t, family) })
	})
	if err == nil {
		err = p.workersGone()
	}
	if err != nil {
		if p.hold != nil {
			err = errors.Join(err, p.hold.Close(), p.hold.Held().Leave(pid, planTimeout, inject.Options{}))
		}
		return nil, fmt.Errorf("park the io_uring rings of process %d: %w", pid, err)
	}
	return p, nil
}

// workersGone waits until the kernel's threads that worked for the rings have ended: CRIU would take them for the
// program's.
func (p *Parked) workersGone() error {
	const pause = 200 * time.Microsecond
	for end := time.Now().Add(workersTime); inject.Workers(p.pid); time.Sleep(pause) {
		if time.Now().After(end) {
			return errors.New("threads of the kernel that worked for them do not end")
		}
	}
	return nil
}

// workersTime is how long they may take.
const workersTime = 5 * time.Second

// planTimeout is how long a process may take to carry its plan out.
const planTimeout = time.Minute

// Unpark lets the process make its rings anew, and waits until it has them and goes on.
func (p *Parked) Unpark() error {
	if err := p.hold.Close(); err != nil {
		return err
	}
	return p.Wait(p.pid)
}

// LetGo lets the process go on without waiting for it: it was dumped and ended.
func (p *Parked) LetGo() error { return p.hold.Close() }

// passes is how long a plan waits before it tries again.
const passes = 10 * time.Millisecond

// maxMappings is how many a process may have whose address space is filled; the kernel lets it have twice as many.
// Each gap between them takes a piece for each power of two, and half of these on average.
const (
	maxMappings = 30000
	piecesEach  = 40
)

// codeRoom is how much code the plan for a ring takes.
const codeRoom = 2048

func (p *Parked) park(t *inject.Task, family []int) error {
	rings, err := findRings(p.pid, family)
	if err != nil {
		return err
	}
	if len(rings) == 0 {
		return errors.New("it has none any more")
	}
	if err := unregistered(t); err != nil {
		return err
	}
	all, err := inject.Mappings(p.pid)
	if err != nil {
		return err
	}
	if len(all) > maxMappings {
		return fmt.Errorf("the process has %d mappings", len(all))
	}
	listSize := uint64(len(all)+64) * piecesEach * 16
	room := uint64(4096) + listSize
	for _, r := range rings {
		room += 512
		for _, m := range r.mappings {
			room += m.End - m.Start
		}
	}
	if p.hold, err = t.Hold(room, uint64(len(rings))*(codeRoom+512)+2048); err != nil {
		return err
	}
	p.Held = p.hold.Held()
	p.PID = Innermost(p.pid)
	free := p.hold.Free()
	take := func(size uint64) uint64 {
		at := free
		free = (free + size + 63) &^ 63
		return at
	}
	makings := make([]*remaking, len(rings))
	for i := range rings {
		r := &remaking{ring: &rings[i], template: take(paramsSize + offsetsSize), answer: take(paramsSize),
			pause: take(16)}
		makings[i] = r
		if err := t.Write(r.pause+8, binary.LittleEndian.AppendUint64(nil, uint64(passes))); err != nil {
			return err
		}
		if err := p.learn(t, r); err != nil {
			return fmt.Errorf("ring %d: %w", r.fd, err)
		}
	}
	list := take(listSize)
	for _, r := range makings {
		for _, m := range r.mappings {
			s := saved{m, take(m.End - m.Start)}
			if err := move(t, m.Start, s.at, m.End-m.Start); err != nil {
				return err
			}
			r.memory = append(r.memory, s)
		}
	}
	if err := p.commit(t, makings, list, listSize); err != nil {
		return err
	}
	// From here on the process makes its rings anew, whatever happens.
	if err := p.measure(t, makings); err != nil {
		return err
	}
	for _, r := range rings {
		for _, m := range r.mappings {
			const reserve = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED | unix.MAP_NORESERVE
			if _, err := t.Call(unix.SYS_MMAP, m.Start, m.End-m.Start, unix.PROT_NONE, reserve, ^uint64(0),
				0); err != nil {
				return fmt.Errorf("unmap ring %d: %w", r.fd, err)
			}
		}
		if _, err := t.Call(unix.SYS_CLOSE, uint64(r.fd)); err != nil {
			return fmt.Errorf("close ring %d: %w", r.fd, err)
		}
	}
	return nil
}

// commit makes the plan: all rings anew.
func (p *Parked) commit(t *inject.Task, makings []*remaking, list, size uint64) error {
	var c inject.Code
	fill(&c, list, size)
	p.Rings = nil
	for _, r := range makings {
		if err := p.template(t, r); err != nil {
			return err
		}
		r.plan(&c, p.hold.Failed())
		p.Rings = append(p.Rings, NoteRing{FD: r.fd, Params: r.params})
	}
	empty(&c, list)
	return p.hold.Plan(c)
}

// measure looks at the rings whose entries' size could not be told, by letting them do nothing once or more. They are
// not needed any more: the plan makes others. Until it says that entries are the rare large ones there are some
// microseconds in which a kill leaves the program a ring of small ones.
func (p *Parked) measure(t *inject.Task, makings []*remaking) error {
	for i, r := range makings {
		if r.params.Flags&setupNoSQArray == 0 || r.sqMask+1 >= pageSize/sqeSize {
			continue
		}
		long, err := r.tried(p.pid)
		if err != nil {
			return fmt.Errorf("measure the entries of ring %d: %w", r.fd, err)
		}
		if long {
			const flagsAt = 8 // in params; the layout of the rest is the same
			r.params.Flags |= setupSQE128
			if err := t.Write(r.template+flagsAt, binary.LittleEndian.AppendUint32(nil, r.params.Flags)); err != nil {
				return err
			}
			p.Rings[i].Params.Flags = r.params.Flags
		}
	}
	return nil
}

// unregistered tells when a thread uses a ring by its own index of rings (IORING_REGISTER_RING_FDS): it would have
// the old one there.
func unregistered(t *inject.Task) error {
	const indices, getEvents, registered = 16, 1, 1 << 4
	for i := range t.Threads() {
		for index := uint64(0); index < indices; index++ {
			_, err := t.CallBy(i, unix.SYS_IO_URING_ENTER, index, 0, 0, registered, 0, 0)
			if errors.Is(err, unix.EINVAL) {
				break // it has never used one
			}
			if err == nil {
				return errors.New("a thread has registered a ring's descriptor (IORING_REGISTER_RING_FDS)")
			}
			if !errors.Is(err, unix.EBADF) {
				return fmt.Errorf("ask for registered rings: %w", err)
			}
		}
	}
	return nil
}

// move copies memory of the process.
func move(t *inject.Task, from, to, size uint64) error {
	b := make([]byte, size)
	if err := t.Read(from, b); err != nil {
		return err
	}
	return t.Write(to, b)
}

// learn finds with which flags a ring was made: they are told nowhere. The kernel shows the ring's entries by what
// the program's indices say. So these are moved for a moment, with a plan that moves them back, and what is shown
// tells how large entries are, and whether their order goes through an array.
func (p *Parked) learn(t *inject.Task, r *remaking) error {
	base, _ := r.base()
	flags := uint32(setupCQSize)
	// The indices' places are the same for all rings of a kernel.
	if err := p.try(t, r, flags); err != nil {
		return err
	}
	tail, head := base.Start+uint64(r.params.SQ.Tail), base.Start+uint64(r.params.CQ.Head)
	back := words{{tail, r.sqTail}, {head, r.cqHead}}
	shown, err := p.shown(t, r, back, words{{tail, r.sqHead + 1}, {head, r.cqTail - 1}})
	if err != nil {
		return err
	}
	if shown.cqe == "" {
		return errors.New("this kernel does not show its entries")
	}
	if strings.Contains(shown.sqe, " e0:") {
		flags |= setupSQE128
	}
	if strings.Contains(shown.cqe, "extra1:") {
		flags |= setupCQE32
	}
	if shown.sqe == "" {
		// There is no array, or it names no entry.
		if err := p.try(t, r, flags); err != nil {
			return err
		}
		if shown, err = p.named(t, r, back); err != nil {
			return err
		}
		switch {
		case shown.sqe == "" && r.sqMask == 0:
			return errors.New("a ring of one entry without an array (IORING_SETUP_NO_SQARRAY)")
		case shown.sqe == "":
			flags |= setupNoSQArray
			if r.longSQEs() {
				flags |= setupSQE128
			}
		case strings.Contains(shown.sqe, " e0:"):
			flags |= setupSQE128
		}
	}
	return p.try(t, r, flags)
}

// named is what the kernel shows while an array, if there is one, names the first entry.
func (p *Parked) named(t *inject.Task, r *remaking, back words) (counters, error) {
	base, _ := r.base()
	slot := base.Start + uint64(r.params.SQ.Array) + 4*uint64(r.sqHead&r.sqMask)
	if slot+4 > base.End {
		return counters{}, nil // the program has mapped none
	}
	var b [4]byte
	if err := t.Read(slot, b[:]); err != nil {
		return counters{}, err
	}
	tail := base.Start + uint64(r.params.SQ.Tail)
	return p.shown(t, r, append(back, word{slot, binary.LittleEndian.Uint32(b[:])}),
		words{{slot, 0}, {tail, r.sqHead + 1}})
}

// word is a word of memory and what it is to be.
type word struct {
	at uint64
	v  uint32
}

type words []word

func (w words) write(t *inject.Task) error {
	for _, x := range w {
		if err := t.Write(x.at, binary.LittleEndian.AppendUint32(nil, x.v)); err != nil {
			return err
		}
	}
	return nil
}

// shown gives what the kernel shows of a ring while some words are other ones.
func (p *Parked) shown(t *inject.Task, r *remaking, back, other words) (c counters, err error) {
	var code inject.Code
	for _, w := range back {
		code.Word(w.at, w.v)
	}
	if err := p.hold.Plan(code); err != nil {
		return c, err
	}
	if err := other.write(t); err != nil {
		return c, errors.Join(err, back.write(t))
	}
	p.step("indices moved")
	f, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", p.pid, r.fd))
	if err = errors.Join(err, back.write(t)); err != nil {
		return c, err
	}
	p.step("indices moved back")
	return readCounters(bytes.NewReader(f))
}

func (p *Parked) step(name string) {
	if p.o.Step != nil {
		p.o.Step(name)
	}
}

// try lets the process make a ring with the same parameters and close it: where it may not, or the ring is another,
// the old one stays. What the kernel says of it is in r.params.
func (p *Parked) try(t *inject.Task, r *remaking, flags uint32) error {
	want := params{CQEntries: r.cqMask + 1, Flags: flags}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, want); err != nil {
		return err
	}
	if err := t.Write(r.answer, b.Bytes()); err != nil {
		return err
	}
	if err := t.CallAndClose(unix.SYS_IO_URING_SETUP, uint64(r.sqMask)+1, r.answer); err != nil {
		return fmt.Errorf("it may not make another: %w", err)
	}
	got := make([]byte, paramsSize)
	if err := t.Read(r.answer, got); err != nil {
		return err
	}
	if err := binary.Read(bytes.NewReader(got), binary.LittleEndian, &r.params); err != nil {
		return err
	}
	if r.params.SQEntries != r.sqMask+1 || r.params.CQEntries != r.cqMask+1 {
		return fmt.Errorf("another has %d and %d entries", r.params.SQEntries, r.params.CQEntries)
	}
	return nil
}

// template writes what is to be asked of the kernel, and behind it the layout that it has to answer.
func (p *Parked) template(t *inject.Task, r *remaking) error {
	var b bytes.Buffer
	ask := params{CQEntries: r.cqMask + 1, Flags: r.params.Flags}
	err := errors.Join(binary.Write(&b, binary.LittleEndian, ask), binary.Write(&b, binary.LittleEndian, r.params.SQ),
		binary.Write(&b, binary.LittleEndian, r.params.CQ))
	if err != nil {
		return err
	}
	return t.Write(r.template, b.Bytes())
}

// Wait waits until a restored process, pid here, has made its rings anew, and takes from it what it did that with.
func (n Note) Wait(pid int) error {
	err := n.Held.Leave(pid, planTimeout, inject.Options{})
	if errors.Is(err, inject.ErrGone) {
		return fmt.Errorf("process %d could not make its io_uring rings anew, and was ended: %w", pid, err)
	}
	return err
}
