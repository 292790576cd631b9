package kfdsim

import (
	"encoding/binary"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// userQueue is a queue with its ring and pointers mapped.
type userQueue struct {
	*client
	id       uint32
	ring     abi.KFDAllocMemoryArgs
	ringMem  []byte
	ptrs     abi.KFDAllocMemoryArgs
	doorbell []byte
	code     abi.KFDAllocMemoryArgs
	arg      abi.KFDAllocMemoryArgs // signal at 0, arguments at 256
	argMem   []byte
	next     uint64
	event    uint32
}

func newQueue(t *testing.T, s *Sim, typ uint32) *userQueue {
	t.Helper()
	c := newClient(t, s)
	c.acquire()
	q := &userQueue{client: c}
	page := c.alloc(0, eventPageSize, abi.KFDMemGTT|rw)
	ev := abi.KFDCreateEventArgs{EventPageOffset: page.Handle, EventType: abi.KFDEventSignal, AutoReset: 1}
	c.must(c.kfd, abi.KFDIocCreateEvent, &ev)
	q.event = ev.EventID
	db := c.alloc(0, doorbellSlice, abi.KFDMemDoorbell|abi.KFDMemWritable)
	q.ring = c.alloc(0, pageSize, abi.KFDMemGTT|rw)
	q.ringMem = c.mmap(c.render[0], q.ring.MmapOffset, pageSize)
	for i := 0; i < len(q.ringMem); i += aqlPacket {
		q.ringMem[i] = aqlInvalid
	}
	q.ptrs = c.alloc(0, pageSize, abi.KFDMemGTT|rw)
	q.code = c.alloc(0, pageSize, abi.KFDMemVRAM|rw)
	code := c.mmap(c.render[0], q.code.MmapOffset, pageSize)
	for op := 1; op < 8; op++ {
		binary.LittleEndian.PutUint64(code[64*op:], KernelMagic)
		binary.LittleEndian.PutUint64(code[64*op+8:], uint64(op))
	}
	q.arg = c.alloc(0, pageSize, abi.KFDMemGTT|rw)
	q.argMem = c.mmap(c.render[0], q.arg.MmapOffset, pageSize)
	binary.LittleEndian.PutUint64(q.argMem[signalMailbox:], page.VAAddr+8*uint64(q.event))
	binary.LittleEndian.PutUint32(q.argMem[signalEvent:], q.event)
	args := abi.KFDCreateQueueArgs{RingBaseAddress: q.ring.VAAddr, RingSize: pageSize,
		ReadPointerAddress: q.ptrs.VAAddr + 0x80, WritePointerAddress: q.ptrs.VAAddr + 0x38, GPUID: c.gpus[0],
		QueueType: typ, QueuePercentage: 100}
	c.must(c.kfd, abi.KFDIocCreateQueue, &args)
	q.id = args.QueueID
	q.doorbell = c.mmap(c.kfd, db.MmapOffset, doorbellSlice)[args.DoorbellOffset-db.MmapOffset:]
	return q
}

// dispatch queues a kernel and rings.
func (q *userQueue) dispatch(op KernelOp, dst, src, n, value, out uint64) {
	for i, v := range []uint64{dst, src, n, value, out} {
		binary.LittleEndian.PutUint64(q.argMem[256+8*i:], v)
	}
	binary.LittleEndian.PutUint64(q.argMem[signalValue:], 1)
	pkt := q.ringMem[q.next%(pageSize/aqlPacket)*aqlPacket:]
	clear(pkt[2:aqlPacket])
	binary.LittleEndian.PutUint64(pkt[32:], q.code.VAAddr+64*uint64(op))
	binary.LittleEndian.PutUint64(pkt[40:], q.arg.VAAddr+256)
	binary.LittleEndian.PutUint64(pkt[56:], q.arg.VAAddr)
	binary.LittleEndian.PutUint16(pkt, aqlDispatch)
	storeWord(q.doorbell, 0, q.next)
	q.next++
}

// waitEvent waits for an event and returns its data and the wait's result.
func (q *userQueue) waitEvent(id uint32, ms uint32) (abi.KFDEventData, uint32) {
	q.t.Helper()
	data := &abi.KFDEventData{EventID: id}
	args := abi.KFDWaitEventsArgs{EventsPtr: ptr(data), NumEvents: 1, Timeout: ms}
	q.must(q.kfd, abi.KFDIocWaitEvents, &args)
	return *data, args.WaitResult
}

// run dispatches and waits for the completion signal.
func (q *userQueue) run(op KernelOp, dst, src, n, value, out uint64) {
	q.t.Helper()
	q.dispatch(op, dst, src, n, value, out)
	if _, res := q.waitEvent(q.event, 5000); res != abi.KFDWaitComplete || loadWord(q.argMem, signalValue) != 0 {
		q.t.Fatalf("kernel %d did not complete: %+v", op, q.sim.State())
	}
}

func TestKernelsChangeVRAM(t *testing.T) {
	s := startSim(t, Options{})
	q := newQueue(t, s, abi.KFDQueueComputeAQL)
	const n = 64 << 10
	bo := q.alloc(0, n, abi.KFDMemVRAM|rw)
	mem := q.mmap(q.render[0], bo.MmapOffset, n)
	other := q.alloc(0, n, abi.KFDMemVRAM|rw)
	word := func(m []byte, i int) uint64 { return binary.LittleEndian.Uint64(m[8*i:]) }

	q.run(KernelFill, bo.VAAddr, 0, n, 77, 0)
	if word(mem, 0) != 77 || word(mem, n/8-1) != 77 {
		t.Error("fill")
	}
	q.run(KernelPattern, bo.VAAddr, 0, n, 5, 0)
	q.run(KernelAdd, bo.VAAddr, 0, n, 3, 0)
	for _, i := range []int{0, 1, n/8 - 1} {
		if word(mem, i) != Mix(5+uint64(i))+3 {
			t.Errorf("word %d is %#x", i, word(mem, i))
		}
	}
	q.run(KernelCopy, other.VAAddr, bo.VAAddr, n, 0, 0)
	for range 200 { // the ring has 64 places
		q.run(KernelHash, 0, other.VAAddr, n, 0, q.arg.VAAddr+512)
	}
	if got := loadWord(q.argMem, 512); got != HashWords(0, mem) {
		t.Errorf("hash %#x, expected %#x", got, HashWords(0, mem))
	}
	if got := s.State().Processes[0].Queues[0].Done; got != q.next {
		t.Errorf("%d packets done of %d", got, q.next)
	}
}

// A kernel that goes astray hangs its queue and signals the memory event.
func TestKernelFaults(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  func(*userQueue, abi.KFDAllocMemoryArgs)
		why  string
	}{
		{"beyond the bo", func(q *userQueue, bo abi.KFDAllocMemoryArgs) {
			q.dispatch(KernelFill, bo.VAAddr, 0, bo.Size+8, 1, 0)
		}, "not mapped"},
		{"read only", func(q *userQueue, _ abi.KFDAllocMemoryArgs) {
			ro := q.alloc(0, pageSize, abi.KFDMemVRAM)
			q.dispatch(KernelFill, ro.VAAddr, 0, 8, 1, 0)
		}, "does not allow"},
		{"no program", func(q *userQueue, bo abi.KFDAllocMemoryArgs) {
			q.code.VAAddr = bo.VAAddr
			q.dispatch(KernelFill, bo.VAAddr, 0, 8, 1, 0)
		}, "illegal instruction"},
		{"unknown operation", func(q *userQueue, bo abi.KFDAllocMemoryArgs) { q.dispatch(7, bo.VAAddr, 0, 8, 1, 0) },
			"illegal instruction"},
		{"bad packet", func(q *userQueue, _ abi.KFDAllocMemoryArgs) {
			q.ringMem[0] = 9
			storeWord(q.doorbell, 0, 1)
		}, "aql packet of type 9"},
		{"doorbell too far", func(q *userQueue, _ abi.KFDAllocMemoryArgs) { storeWord(q.doorbell, 0, 64) },
			"on a ring of 64 packets"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startSim(t, Options{GPUs: []GPU{{}}})
			q := newQueue(t, s, abi.KFDQueueComputeAQL)
			ev := abi.KFDCreateEventArgs{EventType: abi.KFDEventMemory}
			q.must(q.kfd, abi.KFDIocCreateEvent, &ev)
			bo := q.alloc(0, pageSize, abi.KFDMemVRAM|rw)
			tc.run(q, bo)
			data, res := q.waitEvent(ev.EventID, 5000)
			if res != abi.KFDWaitComplete || data.Memory.GPUID != q.gpus[0] {
				t.Errorf("memory event: result %d, %+v", res, data)
			}
			if errs := s.State().Errors; len(errs) != 1 || !strings.Contains(errs[0].What, tc.why) {
				t.Errorf("simulator noted %+v, not %q", errs, tc.why)
			}
			if st := s.State().Processes[0].Queues[0]; st.Failed == "" {
				t.Error("queue goes on")
			}
		})
	}
}

// A barrier waits for another queue's signal; an evicted queue for its return.
func TestBarrierAndEviction(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{}}})
	q := newQueue(t, s, abi.KFDQueueComputeAQL)
	binary.LittleEndian.PutUint64(q.argMem[1024+signalValue:], 1)
	pkt := q.ringMem[:aqlPacket]
	clear(pkt)
	binary.LittleEndian.PutUint64(pkt[8:], q.arg.VAAddr+1024)
	binary.LittleEndian.PutUint64(pkt[56:], q.arg.VAAddr)
	binary.LittleEndian.PutUint64(q.argMem[signalValue:], 1)
	binary.LittleEndian.PutUint16(pkt, aqlBarrierAnd)
	storeWord(q.doorbell, 0, 0)
	q.next = 1
	if _, res := q.waitEvent(q.event, 50); res != abi.KFDWaitTimeout {
		t.Fatalf("barrier did not wait: %d", res)
	}
	storeWord(q.argMem, 1024+signalValue, 0)
	if _, res := q.waitEvent(q.event, 5000); res != abi.KFDWaitComplete {
		t.Fatal("barrier did not end")
	}
	bo := q.alloc(0, pageSize, abi.KFDMemVRAM|rw)
	done := make(chan error)
	go func() { done <- s.Evict(os.Getpid(), 3*time.Second) }()
	for late := time.Now().Add(time.Minute); s.State().Processes[0].Evictions == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("nobody is evicted")
		}
	}
	q.dispatch(KernelFill, bo.VAAddr, 0, 8, 1, 0)
	if loadWord(q.argMem, signalValue) != 1 || s.State().Processes[0].Queues[0].Done != 1 {
		t.Error("evicted queue ran")
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, res := q.waitEvent(q.event, 20000); res != abi.KFDWaitComplete {
		t.Error("queue did not go on after the eviction")
	}
	if s.Evict(1, 0) == nil {
		t.Error("evicted a process without kfd")
	}
}

func TestSDMAQueue(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{Model: "navi48"}}})
	q := newQueue(t, s, abi.KFDQueueSDMA)
	a, b := q.alloc(0, pageSize, abi.KFDMemVRAM|rw), q.alloc(0, pageSize, abi.KFDMemGTT|rw)
	copy(q.mmap(q.render[0], a.MmapOffset, pageSize), "moved by a user queue")
	to := q.mmap(q.render[0], b.MmapOffset, pageSize)
	clear(q.ringMem)
	packets := append(append(copyPacket(b.VAAddr, a.VAAddr, pageSize-1), 0), sdmaTrap, q.event)
	packets[0] |= sdmaCopyCPV
	for i, p := range packets {
		binary.LittleEndian.PutUint32(q.ringMem[4*i:], p)
	}
	storeWord(q.doorbell, 0, uint64(4*len(packets)))
	if _, res := q.waitEvent(q.event, 5000); res != abi.KFDWaitComplete {
		t.Fatalf("no trap: %+v", s.State())
	}
	if string(to[:21]) != "moved by a user queue" {
		t.Errorf("copied %q", to[:21])
	}
}

func TestEventRules(t *testing.T) {
	s := startSim(t, Options{})
	q := newQueue(t, s, abi.KFDQueueComputeAQL)
	if _, res := q.waitEvent(q.event, 0); res != abi.KFDWaitTimeout {
		t.Error("instant wait for an unsignalled event")
	}
	q.must(q.kfd, abi.KFDIocSetEvent, &abi.KFDEventArgs{EventID: q.event})
	if _, res := q.waitEvent(q.event, 0); res != abi.KFDWaitComplete {
		t.Error("signalled event")
	}
	if _, res := q.waitEvent(q.event, 0); res != abi.KFDWaitTimeout {
		t.Error("auto reset event stayed signalled")
	}
	data := &abi.KFDEventData{EventID: 4000}
	q.want(syscall.EINVAL, q.kfd, abi.KFDIocWaitEvents, &abi.KFDWaitEventsArgs{EventsPtr: ptr(data), NumEvents: 1})
	q.want(syscall.EINVAL, q.kfd, abi.KFDIocSetEvent, &abi.KFDEventArgs{EventID: 4000})
	q.want(syscall.EINVAL, q.kfd, abi.KFDIocCreateEvent, &abi.KFDCreateEventArgs{EventPageOffset: q.ring.Handle})
	q.want(syscall.EINVAL, q.kfd, abi.KFDIocCreateEvent, &abi.KFDCreateEventArgs{EventType: 9})

	// Destroying an event ends a wait for it. A wait that begins after that is refused: then it is tried again, with
	// more time to begin.
	errno := syscall.EINVAL
	for pause := 20 * time.Millisecond; errno == syscall.EINVAL && pause < 10*time.Second; pause *= 4 {
		ev := abi.KFDCreateEventArgs{EventType: abi.KFDEventSignal}
		q.must(q.kfd, abi.KFDIocCreateEvent, &ev)
		args := abi.KFDWaitEventsArgs{EventsPtr: ptr(&abi.KFDEventData{EventID: ev.EventID}), NumEvents: 1,
			Timeout: 30000}
		waited := make(chan syscall.Errno)
		go func() { waited <- ioctl(q.kfd, abi.KFDIocWaitEvents, &args) }()
		time.Sleep(pause)
		q.must(q.kfd, abi.KFDIocDestroyEvent, &abi.KFDEventArgs{EventID: ev.EventID})
		if errno = <-waited; errno == 0 && args.WaitResult != abi.KFDWaitFail {
			t.Errorf("wait for a destroyed event: %d", args.WaitResult)
		}
	}
	if errno != 0 {
		t.Errorf("wait for an event that is destroyed: %v", errno)
	}
}

func TestQueueRules(t *testing.T) {
	s := startSim(t, Options{})
	q := newQueue(t, s, abi.KFDQueueComputeAQL)
	ok := abi.KFDCreateQueueArgs{RingBaseAddress: q.ring.VAAddr, RingSize: pageSize,
		ReadPointerAddress: q.ptrs.VAAddr + 0x80, WritePointerAddress: q.ptrs.VAAddr + 0x38, GPUID: q.gpus[0],
		QueueType: abi.KFDQueueSDMA, QueuePercentage: 100}
	for _, tc := range []struct {
		name string
		edit func(*abi.KFDCreateQueueArgs)
	}{
		{"ring elsewhere", func(a *abi.KFDCreateQueueArgs) { a.RingBaseAddress = 1 << 40 }},
		{"ring not a power of two", func(a *abi.KFDCreateQueueArgs) { a.RingSize = 3000 }},
		{"ring smaller than its bo",
			func(a *abi.KFDCreateQueueArgs) { a.RingBaseAddress, a.RingSize = q.arg.VAAddr, 8192 }},
		{"read pointer nowhere", func(a *abi.KFDCreateQueueArgs) { a.ReadPointerAddress = 8 }},
		{"percentage", func(a *abi.KFDCreateQueueArgs) { a.QueuePercentage = 101 }},
		{"priority", func(a *abi.KFDCreateQueueArgs) { a.QueuePriority = 16 }},
		{"gpu", func(a *abi.KFDCreateQueueArgs) { a.GPUID = 1 }},
		{"PM4", func(a *abi.KFDCreateQueueArgs) { a.QueueType = abi.KFDQueueCompute }},
	} {
		a := ok
		tc.edit(&a)
		if errno := ioctl(q.kfd, abi.KFDIocCreateQueue, &a); errno != syscall.EINVAL {
			t.Errorf("%s: %v", tc.name, errno)
		}
	}
	q.must(q.kfd, abi.KFDIocCreateQueue, &ok)
	q.must(q.kfd, abi.KFDIocDestroyQueue, &abi.KFDDestroyQueueArgs{QueueID: ok.QueueID})
	q.want(syscall.EINVAL, q.kfd, abi.KFDIocDestroyQueue, &abi.KFDDestroyQueueArgs{QueueID: ok.QueueID})
}

// The area that waves are saved to has the size that the GPU's units ask for, once for each of its dies.
func TestSaveArea(t *testing.T) {
	for model, dies := range map[string]uint64{"mi50": 1, "mi300x": 8} {
		s := startSim(t, Options{GPUs: []GPU{{Model: model}}})
		q := newQueue(t, s, abi.KFDQueueComputeAQL)
		stack, area, debug := s.gpus[0].saveArea()
		whole := q.alloc(0, pageAlign(dies*uint64(area+debug)), abi.KFDMemGTT|rw)
		ok := abi.KFDCreateQueueArgs{RingBaseAddress: q.ring.VAAddr, RingSize: pageSize,
			ReadPointerAddress: q.ptrs.VAAddr + 0x80, WritePointerAddress: q.ptrs.VAAddr + 0x38, GPUID: q.gpus[0],
			QueueType: abi.KFDQueueComputeAQL, QueuePercentage: 100, CtlStackSize: stack,
			CtxSaveRestoreAddress: whole.VAAddr, CtxSaveRestoreSize: area}
		for name, edit := range map[string]func(*abi.KFDCreateQueueArgs){
			"a smaller area":            func(a *abi.KFDCreateQueueArgs) { a.CtxSaveRestoreSize -= pageSize },
			"another control stack":     func(a *abi.KFDCreateQueueArgs) { a.CtlStackSize += pageSize },
			"a mapping of another size": func(a *abi.KFDCreateQueueArgs) { a.CtxSaveRestoreAddress = q.arg.VAAddr },
		} {
			a := ok
			edit(&a)
			if errno := ioctl(q.kfd, abi.KFDIocCreateQueue, &a); errno != syscall.EINVAL {
				t.Errorf("%s with %s: %v", model, name, errno)
			}
		}
		q.must(q.kfd, abi.KFDIocCreateQueue, &ok)
	}
}

func TestAcquireVMRules(t *testing.T) {
	s := startSim(t, Options{})
	c := newClient(t, s)
	c.want(syscall.ENODEV, c.kfd, abi.KFDIocAllocMemory,
		&abi.KFDAllocMemoryArgs{Size: 4096, GPUID: c.gpus[0], Flags: abi.KFDMemVRAM})
	c.want(syscall.EINVAL, c.kfd, abi.KFDIocAcquireVM,
		&abi.KFDAcquireVMArgs{DRMFD: uint32(c.render[1]), GPUID: c.gpus[0]})
	c.want(syscall.EINVAL, c.kfd, abi.KFDIocAcquireVM, &abi.KFDAcquireVMArgs{DRMFD: 0, GPUID: c.gpus[0]})
	c.want(syscall.EINVAL, c.kfd, abi.KFDIocAcquireVM, &abi.KFDAcquireVMArgs{DRMFD: uint32(c.render[0]), GPUID: 5})
	c.acquire()
	c.acquire() // again with the same files
	other := c.open("dri/renderD128")
	defer unix.Close(other)
	c.want(syscall.EBUSY, c.kfd, abi.KFDIocAcquireVM, &abi.KFDAcquireVMArgs{DRMFD: uint32(other), GPUID: c.gpus[0]})
}

// A queue that comes to memory of a process that has ended is no GPU's fault: the driver stops the queues before the
// memory goes. Nobody has to be quick for that.
func TestQueueOfAnEndedProcess(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{}}})
	q := newQueue(t, s, abi.KFDQueueComputeAQL)
	mem := make([]byte, 2*pageSize)
	start := (ptr(&mem[0]) + pageSize - 1) &^ (pageSize - 1)
	bo := abi.KFDAllocMemoryArgs{VAAddr: 0x7000000, Size: pageSize, MmapOffset: start, GPUID: q.gpus[0],
		Flags: abi.KFDMemUserptr | rw}
	q.must(q.kfd, abi.KFDIocAllocMemory, &bo)
	q.must(q.kfd, abi.KFDIocMapMemory, &abi.KFDMapMemoryArgs{Handle: bo.Handle, DeviceIDsArrayPtr: ptr(&q.gpus[0]),
		NDevices: 1})
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	for _, b := range s.bos {
		if b.kind == boUserptr {
			b.user.pid = cmd.Process.Pid
		}
	}
	s.unlock()
	q.dispatch(KernelFill, bo.VAAddr, 0, 8, 1, 0)
	for s.State().Processes[0].Queues[0].Failed == "" {
		time.Sleep(time.Millisecond)
	}
	if errs := s.State().Errors; len(errs) != 0 {
		t.Errorf("noted as a fault of the GPU: %+v", errs)
	}
	runtime.KeepAlive(mem)
}
