package helper

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/restore/touch"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// minLazy is how much has to be able to follow a process for it to run first, in
// bytes: less takes a few milliseconds.
const minLazy = 1 << 20

// extent is a range of mmap offsets of the render node of that number.
type extent struct {
	off, end uint64
	minor    uint32
}

// lazyBOs tells which BOs of a process may be filled when it runs: VRAM that the
// driver maps for no CPU, since its owner did not ask for that. None of a process
// with ranges of shared virtual memory, whose attributes the driver applies in
// RESUME, nor of one whose state is not understood; and none that others hold too.
func lazyBOs(p image.Process, shared []bool) []bool {
	priv, err := p.PrivData()
	if err != nil || len(priv.Ranges) > 0 {
		return nil
	}
	out := make([]bool, len(p.Layout.BOs))
	var n int64
	for i, bo := range p.Layout.BOs {
		out[i] = bo.File != "" && !shared[i] && bo.Kind == image.VRAM &&
			p.Message.Bos[i].GetAllocFlags()&abi.KFDMemPublic == 0
		if out[i] {
			n += bo.Size
		}
	}
	if n < minLazy {
		return nil
	}
	return out
}

// idle tells whether none of a process's queues had work at the dump: each had been
// read as far as it was written. Pointers that no image file holds tell nothing, and
// the process counts as busy.
func idle(images string, p image.Process) bool {
	priv, err := p.PrivData()
	if err != nil {
		return false
	}
	for _, q := range priv.Queues {
		read, err1 := word(images, p, q.ReadPtrAddr)
		written, err2 := word(images, p, q.WritePtrAddr)
		if err1 != nil || err2 != nil || read != written {
			return false
		}
	}
	return true
}

// word reads 8 bytes of a process's BOs from the images.
func word(images string, p image.Process, addr uint64) (uint64, error) {
	for _, bo := range p.Layout.BOs {
		at := addr - bo.Addr
		if bo.File == "" || addr < bo.Addr || at+8 > uint64(bo.Size) {
			continue
		}
		f, err := os.Open(filepath.Join(images, bo.File))
		if err != nil {
			return 0, err
		}
		defer f.Close()
		var b [8]byte
		_, err = f.ReadAt(b[:], bo.Offset+int64(at))
		return binary.NativeEndian.Uint64(b[:]), err
	}
	return 0, fmt.Errorf("no image holds %#x", addr)
}

// split divides a plan into what has to be there when the process runs, and what
// may follow.
func (p plan) split(lazy []bool) (now, later vram.Plan) {
	now.Nodes, later.Nodes = p.Nodes, p.Nodes
	for _, bo := range p.BOs {
		if lazy != nil && lazy[bo.Index] {
			later.BOs = append(later.BOs, bo)
		} else {
			now.BOs = append(now.BOs, bo)
		}
	}
	return now, later
}

// extents are where the BOs that follow can be mapped now, from the buckets that
// RESTORE has completed. minor gives the render node, on this machine, of a GPU that
// the process knows.
func extents(buckets []byte, lazy []bool, minor func(gpu uint32) uint32) ([]extent, error) {
	bos := make([]abi.KFDCRIUBoBucket, len(lazy))
	if err := abi.Decode(buckets, bos); err != nil {
		return nil, err
	}
	var out []extent
	for i, b := range bos {
		if lazy[i] {
			out = append(out, extent{b.RestoredOffset, b.RestoredOffset + b.Size, minor(b.GPUID)})
		}
	}
	slices.SortFunc(out, func(a, b extent) int { return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.end, b.end)) })
	return out, nil
}

// mapped tells whether a process has mapped one of these extents so that its CPU can
// touch it, on the device that is tells of.
func mapped(pid int, list []extent, is func(pid int, line string, e extent) bool) (bool, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var start, end, off, inode uint64
		var perms, dev string
		n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %d", &start, &end, &perms, &off, &dev, &inode)
		if n != 6 || inode == 0 || len(perms) < 3 || perms[:3] == "---" {
			continue
		}
		for _, e := range list {
			if e.off < off+(end-start) && off < e.end && is(pid, lines.Text(), e) {
				return true, nil
			}
		}
	}
	return false, lines.Err()
}

// anyDevice tells whether a line of maps is of a device; what cannot be found out
// counts as one. Another GPU's BO of the same offset counts, too.
func anyDevice(pid int, line string, _ extent) bool {
	var st unix.Stat_t
	if strings.Contains(line, "renderD") || unix.Stat(mapFile(pid, line), &st) != nil {
		return true
	}
	return st.Mode&unix.S_IFMT != unix.S_IFREG
}

// thatNode tells whether a line of maps is of an extent's render node.
func thatNode(pid int, line string, e extent) bool {
	if strings.HasSuffix(line, fmt.Sprintf("/renderD%d", e.minor)) {
		return true
	}
	var st unix.Stat_t
	err := unix.Stat(mapFile(pid, line), &st)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(abi.DRMMajor, e.minor)
}

// mapFile is what a line of maps has mapped.
func mapFile(pid int, line string) string {
	addresses, _, _ := strings.Cut(line, " ")
	return fmt.Sprintf("/proc/%d/map_files/%s", pid, addresses)
}

// fillLater brings the rest of a process that runs, lets its queues run then, or ends
// it.
func (r *restore) fillLater(t *task) {
	memory := make(chan error, 1)
	go func() { memory <- r.touchMemory(t) }()
	<-t.filled
	brought := <-memory
	r.mu.Lock()
	err := t.err
	r.mu.Unlock()
	if err == nil {
		err = brought
	}
	if err == nil && !t.end.gone() {
		if err = r.touched(t); err == nil {
			err = resumeQueues(t.pid)
		}
	}
	switch {
	case err != nil:
		endUnready(t.end, t.pid, err, r.opts.Logger, r.opts.Tell)
	case !t.end.gone():
		r.opts.Tell(Event{PID: t.pid})
	}
	r.watchdog.remove(t)
	if err := r.pending.Remove(t.at); err != nil {
		r.opts.Logger.Warn("the record of a process that is ready stays", "pid", t.pid, "err", err)
	}
}

// touched refuses a process that has mapped for its CPU, since it runs, what was not
// there yet (mprotect of a mapping for nobody, as ROCm makes them for debuggers): it
// may have read that, or written what the fill has overwritten. The driver lets it.
func (r *restore) touched(t *task) error {
	cpu, err := mapped(t.pid, t.later, thatNode)
	if t.end.gone() {
		return nil // an ended process cannot be looked at
	}
	if err == nil && cpu {
		err = errors.New("its CPU could touch VRAM before that was there")
	}
	return err
}

// touchMemory brings the memory that a process's GPUs use of its own.
func (r *restore) touchMemory(t *task) error {
	if len(t.memory) == 0 {
		return nil
	}
	return touch.Spans(t.pid, t.memory, r.opts.Stall)
}

// together is how many bytes of fills may be on their way to a GPU when another
// begins: small ones wait more than they move.
const together = 64 << 20

// turns let the rest of processes be filled one after the other on each GPU, so that
// the queues of the first run when a part is there, and not all at the end. Those whose
// queues had work at the dump go before those that wait and had none.
type turns struct {
	mu   sync.Mutex
	list []*turn // in order
}

type turn struct {
	idle  bool // its process had nothing to do at the dump
	nodes map[string]uint64
	begin chan struct{}
	begun bool
}

// newTurn queues a fill.
func (s *turns) newTurn(p vram.Plan, idle bool) *turn {
	t := &turn{idle: idle, nodes: map[string]uint64{}, begin: make(chan struct{})}
	for _, bo := range p.BOs {
		t.nodes[p.Nodes[bo.Node].Name] += bo.Size
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(s.list)
	for i > 0 && s.list[i-1].idle && !idle && !s.list[i-1].begun {
		i--
	}
	s.list = slices.Insert(s.list, i, t)
	s.admit()
	return t
}

// coreRate is about what a core moves, in bytes a second, and linkRate what a GPU's link
// does.
const (
	coreRate = 1e9
	linkRate = 16e9
)

// headStart is how long a fill waits for its process to run: a small part of the time that
// it takes itself. Where cores are few it would take them from criu.
func headStart(p vram.Plan) time.Duration {
	var bytes uint64
	for _, bo := range p.BOs {
		bytes += bo.Size
	}
	rate := min(coreRate*float64(runtime.NumCPU()), linkRate)
	return time.Duration(float64(bytes) / rate / 20 * float64(time.Second))
}

// after is closed when it is the turn of t, and its process has run or so much time has
// passed; not when ctx has ended before.
func (t *turn) after(ctx context.Context, ran <-chan struct{}, wait time.Duration) <-chan struct{} {
	begin := make(chan struct{})
	go func() {
		late := time.NewTimer(wait)
		defer late.Stop()
		select {
		case <-ran:
		case <-late.C:
		case <-ctx.Done():
			return
		}
		select {
		case <-t.begin:
			close(begin)
		case <-ctx.Done():
		}
	}()
	return begin
}

// done says that a fill has ended, or is not wanted any more.
func (s *turns) done(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(o *turn) bool { return o == t })
	s.admit()
}

// admit begins what may begin. Preconditions: s.mu is held.
func (s *turns) admit() {
	ahead := map[string]uint64{} // bytes of those before, also of those that wait
	begun := 0
	for _, t := range s.list {
		free := begun < maxFills
		for n := range t.nodes {
			free = free && ahead[n] < together
		}
		if free && !t.begun {
			t.begun = true
			close(t.begin)
		}
		if t.begun {
			begun++
		}
		for n, bytes := range t.nodes {
			ahead[n] += bytes
		}
	}
}

// stop is a context that ends with the work or with the process.
func (t *task) work(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-t.end.ended:
			cancel(fmt.Errorf("process %d has ended", t.pid))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
