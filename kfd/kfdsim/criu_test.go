package kfdsim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// checkpoint is what CHECKPOINT reports, as an image would hold it.
type checkpoint struct {
	args    abi.KFDCRIUArgs
	devices []byte
	bos     []byte
	priv    []byte
}

// room makes the buffers for a checkpoint of the counts in args.
func (k *checkpoint) room() {
	k.devices = make([]byte, 16*k.args.NumDevices)
	k.bos = make([]byte, 48*k.args.NumBOs)
	k.priv = make([]byte, k.args.PrivDataSize)
	k.point()
}

func (k *checkpoint) point() {
	k.args.Devices, k.args.BOs, k.args.PrivData = slicePtr(k.devices), slicePtr(k.bos), slicePtr(k.priv)
}

func (k *checkpoint) op(c *client, op uint32) syscall.Errno {
	k.args.Op = op
	return ioctl(c.kfd, abi.KFDIocCRIUOp, &k.args)
}

func (k *checkpoint) buckets(t *testing.T) []abi.KFDCRIUBoBucket {
	t.Helper()
	out := make([]abi.KFDCRIUBoBucket, k.args.NumBOs)
	if err := abi.Decode(k.bos, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (k *checkpoint) setBuckets(list []abi.KFDCRIUBoBucket) {
	copy(k.bos, appendStruct(nil, list))
}

// demo fills a process with one of everything and returns a VRAM BO.
func demo(c *client) abi.KFDAllocMemoryArgs {
	c.t.Helper()
	return demoWith(c, c.anonymous(2*pageSize))
}

// demoWith has two pages for what is of the process itself: a userptr of both, an SVM range of the first.
func demoWith(c *client, mem []byte) abi.KFDAllocMemoryArgs {
	c.t.Helper()
	c.acquire()
	page := c.alloc(0, eventPageSize, abi.KFDMemGTT|rw)
	ev := abi.KFDCreateEventArgs{EventPageOffset: page.Handle, EventType: abi.KFDEventSignal, AutoReset: 1}
	c.must(c.kfd, abi.KFDIocCreateEvent, &ev)
	c.must(c.kfd, abi.KFDIocCreateEvent, &abi.KFDCreateEventArgs{EventType: abi.KFDEventMemory})
	c.must(c.kfd, abi.KFDIocSetEvent, &abi.KFDEventArgs{EventID: ev.EventID})
	vram := c.alloc(0, 3*pageSize, abi.KFDMemVRAM|rw)
	if len(c.gpus) > 1 {
		c.mapTo(vram.Handle, 1)
	}
	user := abi.KFDAllocMemoryArgs{VAAddr: c.nextVA, Size: 2 * pageSize, MmapOffset: slicePtr(mem), GPUID: c.gpus[0],
		Flags: abi.KFDMemUserptr | rw}
	c.nextVA += 1 << 21
	c.must(c.kfd, abi.KFDIocAllocMemory, &user)
	c.alloc(0, doorbellSlice, abi.KFDMemDoorbell|abi.KFDMemWritable)
	ring := c.alloc(0, pageSize, abi.KFDMemGTT|rw)
	ptrs := c.alloc(0, pageSize, abi.KFDMemGTT|rw)
	q := abi.KFDCreateQueueArgs{RingBaseAddress: ring.VAAddr, RingSize: pageSize,
		ReadPointerAddress:  ptrs.VAAddr + 0x80,
		WritePointerAddress: ptrs.VAAddr + 0x38, GPUID: c.gpus[0], QueueType: abi.KFDQueueComputeAQL,
		QueuePercentage: 100, CtlStackSize: pageSize}
	c.must(c.kfd, abi.KFDIocCreateQueue, &q)
	svm := make([]byte, svmHeadSize+8)
	copy(svm, appendStruct(appendStruct(nil,
		&abi.KFDSVMArgs{StartAddr: slicePtr(mem), Size: pageSize, Op: svmSetAttr, NAttr: 1}),
		&abi.KFDSVMAttribute{Type: svmAccess, Value: c.gpus[0]}))
	c.must(c.kfd, abi.KFDIocSVM.WithSize(len(svm)), svm)
	return vram
}

// take checkpoints a process by the rules.
func take(t *testing.T, c *client) *checkpoint {
	t.Helper()
	k := &checkpoint{}
	if errno := k.op(c, abi.KFDCRIUProcessInfo); errno != 0 {
		t.Fatalf("PROCESS_INFO: %v (%s)", errno, last(c.sim))
	}
	k.room()
	if errno := k.op(c, abi.KFDCRIUCheckpoint); errno != 0 {
		t.Fatalf("CHECKPOINT: %v (%s)", errno, last(c.sim))
	}
	return k
}

func TestCheckpointOrder(t *testing.T) {
	s := startSim(t, Options{})
	c := newClient(t, s)
	demo(c)
	want := func(k *checkpoint, op uint32, errno syscall.Errno, why string) {
		t.Helper()
		if got := k.op(c, op); got != errno {
			t.Errorf("%s: %v, want %v (%s)", why, got, errno, last(s))
		}
	}
	k := &checkpoint{args: abi.KFDCRIUArgs{NumDevices: 2, NumBOs: 6, PrivDataSize: 4096}}
	k.room()
	want(k, abi.KFDCRIUCheckpoint, syscall.EINVAL, "checkpoint before PROCESS_INFO")
	want(k, abi.KFDCRIUUnpause, syscall.EINVAL, "unpause of a running process")
	want(k, abi.KFDCRIUResume, syscall.ESRCH, "resume of no process")
	k.args.PID = uint32(os.Getpid())
	want(k, abi.KFDCRIUResume, syscall.EINVAL, "resume of a process never restored")
	want(k, 9, syscall.EINVAL, "operation 9")

	info := &checkpoint{}
	want(info, abi.KFDCRIUProcessInfo, 0, "PROCESS_INFO")
	if info.args.NumDevices != 2 || info.args.NumBOs != 6 || info.args.NumObjects != 4 ||
		info.args.PID != uint32(os.Getpid()) {
		t.Errorf("PROCESS_INFO reports %+v of process %d", info.args, os.Getpid())
	}
	for _, edit := range []func(*abi.KFDCRIUArgs){
		func(a *abi.KFDCRIUArgs) { a.NumBOs-- },
		func(a *abi.KFDCRIUArgs) { a.NumDevices-- },
		func(a *abi.KFDCRIUArgs) { a.NumObjects++ },
		func(a *abi.KFDCRIUArgs) { a.PrivDataSize += 8 },
	} {
		bad := &checkpoint{args: info.args}
		bad.room()
		edit(&bad.args)
		want(bad, abi.KFDCRIUCheckpoint, syscall.EINVAL, "checkpoint with another count")
	}
	empty := &checkpoint{args: info.args}
	want(empty, abi.KFDCRIUCheckpoint, syscall.EINVAL, "checkpoint without buffers")
	info.room()
	want(info, abi.KFDCRIUCheckpoint, 0, "CHECKPOINT")
	if got := s.State().Processes[0].Evictions; got != 1 {
		t.Errorf("%d reasons to stand still while paused", got)
	}
	want(info, abi.KFDCRIUUnpause, 0, "UNPAUSE")
	want(info, abi.KFDCRIUUnpause, syscall.EINVAL, "second UNPAUSE")
	if got := s.State().Processes[0].Evictions; got != 0 {
		t.Errorf("%d reasons to stand still after UNPAUSE", got)
	}
	// Every VRAM and GTT BO came with a dmabuf.
	for _, b := range info.buckets(t) {
		has := b.AllocFlags&abi.KFDMemPaged != 0
		if has != (b.DmabufFD != abi.KFDInvalidFD) {
			t.Errorf("bo of flags %#x has dmabuf %#x", b.AllocFlags, b.DmabufFD)
		}
		if has {
			c.install(b.DmabufFD)
		}
	}
}

// A checkpoint restored elsewhere and taken again is the same checkpoint, but
// for what the hardware and the process decide.
func TestCheckpointRestoreCheckpoint(t *testing.T) {
	a := startSim(t, Options{GPUs: []GPU{{ID: 11}, {ID: 12}}})
	ca := newClient(t, a)
	vram := demo(ca)
	copy(ca.mmap(ca.render[0], vram.MmapOffset, vram.Size), "contents are the plugin's business")
	k := take(t, ca)

	b := startSim(t, Options{GPUs: []GPU{{ID: 21}, {ID: 22}}})
	cb := newClient(t, b)
	again := restoreInto(t, cb, k, 0)
	resume := &checkpoint{args: abi.KFDCRIUArgs{PID: uint32(os.Getpid())}}
	if got := b.State().Processes[0].Evictions; got != 1 {
		t.Errorf("%d reasons to stand still before RESUME", got)
	}
	if errno := resume.op(cb, abi.KFDCRIUResume); errno != 0 {
		t.Fatalf("RESUME: %v", errno)
	}
	if errno := resume.op(cb, abi.KFDCRIUResume); errno != syscall.EINVAL {
		t.Errorf("second RESUME: %v", errno)
	}
	for i, bo := range again.buckets(t) {
		orig := k.buckets(t)[i]
		if bo.AllocFlags&(abi.KFDMemVRAM|abi.KFDMemGTT) != 0 && bo.RestoredOffset == orig.Offset {
			t.Errorf("bo %d has its old offset %#x", i, bo.RestoredOffset)
		}
	}
	// RESUME is over before the queues run.
	queuesRun(t, b)
	k2 := take(t, cb)
	if !bytes.Equal(k.priv, k2.priv) {
		t.Error("private data of the second checkpoint differs")
	}
	for i, bo := range k2.buckets(t) {
		orig := k.buckets(t)[i]
		if bo.Addr != orig.Addr || bo.Size != orig.Size || bo.GPUID != orig.GPUID || bo.AllocFlags != orig.AllocFlags {
			t.Errorf("bo %d is %+v, was %+v", i, bo, orig)
		}
	}
	// The process goes on with the ids and handles it knows.
	cb.must(cb.kfd, abi.KFDIocUnmapMemory,
		&abi.KFDMapMemoryArgs{Handle: vram.Handle, DeviceIDsArrayPtr: ptr(&[]uint32{12}[0]), NDevices: 1})
	var wait struct {
		D abi.KFDEventData
	}
	args := abi.KFDWaitEventsArgs{EventsPtr: ptr(&wait), NumEvents: 1}
	cb.must(cb.kfd, abi.KFDIocWaitEvents, &args)
	if args.WaitResult != abi.KFDWaitComplete {
		t.Error("signalled event was not restored so")
	}
}

// restoreInto issues RESTORE with a copy of k on another simulator.
func restoreInto(t *testing.T, c *client, k *checkpoint, want syscall.Errno, edits ...func(*checkpoint)) *checkpoint {
	t.Helper()
	r := &checkpoint{args: k.args, devices: bytes.Clone(k.devices), bos: bytes.Clone(k.bos), priv: bytes.Clone(k.priv)}
	devs := make([]abi.KFDCRIUDeviceBucket, len(r.devices)/16)
	if err := abi.Decode(r.devices, devs); err != nil {
		t.Fatal(err)
	}
	for i := range devs {
		devs[i].ActualGPUID, devs[i].DRMFD = c.gpus[i], uint32(c.render[i])
	}
	r.devices = appendStruct(nil, devs)
	r.point()
	for _, e := range edits {
		e(r)
	}
	if errno := r.op(c, abi.KFDCRIURestore); errno != want {
		t.Fatalf("RESTORE: %v, want %v (%s)", errno, want, last(c.sim))
	}
	runtime.KeepAlive(r.devices)
	return r
}

// A RESTORE that is interrupted when it has given the process its address spaces cannot be asked for again.
func TestRestoreInterrupted(t *testing.T) {
	a := startSim(t, Options{})
	ca := newClient(t, a)
	demo(ca)
	k := take(t, ca)
	for what, want := range map[string]syscall.Errno{"RESTORE": 0, restoreBound: syscall.EINVAL} {
		s := startSim(t, Options{})
		c := newClient(t, s)
		if err := s.Inject(Fault{Kind: FaultIoctl, Request: abi.KFDIocCRIUOp.String() + " " + what,
			Errno: syscall.EINTR, Count: 1}); err != nil {
			t.Fatal(err)
		}
		restoreInto(t, c, k, want) // asks again after EINTR
		if n := s.ClearFaults(); n != 1 {
			t.Errorf("%s was interrupted %d times", what, n)
		}
	}
}

// SVM ranges are applied by RESUME, which fails where their memory is not there; userptrs whose pages userfaultfd has
// yet to bring are lost to the GPU without a word.
func TestResumeLooksForMemory(t *testing.T) {
	a := startSim(t, Options{})
	ca := newClient(t, a)
	mem := ca.anonymous(2 * pageSize)
	demoWith(ca, mem)
	k := take(t, ca)
	for _, tc := range []struct {
		name   string
		before func(t *testing.T)
		errno  syscall.Errno
		lost   bool
	}{
		{"all is there", func(*testing.T) { mem[0], mem[pageSize] = 1, 1 }, 0, false},
		{"nothing was touched", func(t *testing.T) { fresh(t, mem) }, 0, false},
		{"a userptr's page is to come", func(t *testing.T) {
			fresh(t, mem)
			mem[0] = 1 // the SVM range is there
			byUserfaultfd(t, mem)
		}, 0, true},
		{"an svm range is to come", func(t *testing.T) { fresh(t, mem); byUserfaultfd(t, mem) }, syscall.EFAULT, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startSim(t, Options{})
			c := newClient(t, s)
			restoreInto(t, c, k, 0)
			tc.before(t)
			resume := &checkpoint{args: abi.KFDCRIUArgs{PID: uint32(os.Getpid())}}
			if errno := resume.op(c, abi.KFDCRIUResume); errno != tc.errno {
				t.Fatalf("RESUME: %v, want %v (%s)", errno, tc.errno, last(s))
			}
			if tc.errno != 0 {
				if n := s.State().Processes[0].Evictions; n != 1 {
					t.Errorf("%d reasons to stand still after a RESUME that failed", n)
				}
				return
			}
			queuesRun(t, s)
			lost := false
			s.mu.Lock()
			for _, b := range s.bos {
				lost = lost || b.lost
			}
			s.mu.Unlock()
			if lost != tc.lost {
				t.Errorf("a userptr is lost: %v", lost)
			}
		})
	}
}

// queuesRun waits until nothing keeps the queues of the one process.
func queuesRun(t *testing.T, s *Sim) {
	t.Helper()
	for late := time.Now().Add(time.Minute); s.State().Processes[0].Evictions != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the queues never run")
		}
	}
}

// fresh gives memory new pages at its place.
func fresh(t *testing.T, mem []byte) {
	t.Helper()
	if err := unix.Madvise(mem, unix.MADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

func TestRestoreRefusals(t *testing.T) {
	a := startSim(t, Options{})
	ca := newClient(t, a)
	demo(ca)
	k := take(t, ca)
	dev := func(r *checkpoint, i int, edit func(*abi.KFDCRIUDeviceBucket)) {
		devs := make([]abi.KFDCRIUDeviceBucket, len(r.devices)/16)
		abi.Decode(r.devices, devs)
		edit(&devs[i])
		copy(r.devices, appendStruct(nil, devs))
	}
	for _, tc := range []struct {
		name  string
		opts  Options
		setup func(*client)
		edit  func(*checkpoint)
		errno syscall.Errno
	}{
		{name: "fewer gpus here", opts: Options{GPUs: []GPU{{}}}, edit: func(*checkpoint) {}, errno: syscall.EINVAL},
		{name: "vm acquired", setup: (*client).acquire, edit: func(*checkpoint) {}, errno: syscall.EINVAL},
		{name: "other gpu's render node", edit: func(r *checkpoint) {
			dev(r, 0, func(d *abi.KFDCRIUDeviceBucket) { d.ActualGPUID++ })
		}, errno: syscall.EINVAL},
		{name: "no render node", edit: func(r *checkpoint) {
			dev(r, 0, func(d *abi.KFDCRIUDeviceBucket) { d.DRMFD = 0xffffffff })
		}, errno: syscall.EINVAL},
		{name: "user gpu id 0", edit: func(r *checkpoint) {
			dev(r, 1, func(d *abi.KFDCRIUDeviceBucket) { d.UserGPUID = 0 })
		}, errno: syscall.EINVAL},
		{name: "no bos", edit: func(r *checkpoint) { r.args.NumBOs = 0 }, errno: syscall.EINVAL},
		{name: "other version", edit: func(r *checkpoint) { r.priv[0] = 2 }, errno: syscall.EINVAL},
		{name: "data left over", edit: func(r *checkpoint) { r.args.NumObjects-- }, errno: syscall.EINVAL},
		{name: "data cut off", edit: func(r *checkpoint) { r.args.PrivDataSize -= 8 }, errno: syscall.EINVAL},
		{name: "unknown object", edit: func(r *checkpoint) {
			binary.NativeEndian.PutUint32(r.priv[8+2*8+int(r.args.NumBOs)*privBOSize:], 7)
		}, errno: syscall.EINVAL},
		{name: "bo of a gpu not restored", edit: func(r *checkpoint) {
			list := r.buckets(t)
			list[0].GPUID = 9
			r.setBuckets(list)
		}, errno: syscall.ENODEV},
		{name: "two bos of one handle", edit: func(r *checkpoint) {
			copy(r.priv[8+16+privBOSize+8:], r.priv[8+16+8:8+16+12])
		}, errno: syscall.ENOMEM},
		{name: "too little vram", opts: Options{GPUs: []GPU{{VRAM: 8192}, {}}}, edit: func(*checkpoint) {},
			errno: syscall.ENOMEM},
		{name: "pointer to nowhere", edit: func(r *checkpoint) { r.args.BOs = 8 }, errno: syscall.EFAULT},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startSim(t, tc.opts)
			c := newClient(t, s)
			if tc.setup != nil {
				tc.setup(c)
			}
			if len(c.gpus) == 1 {
				c.gpus, c.render = append(c.gpus, c.gpus[0]), append(c.render, c.open("dri/renderD128"))
			}
			restoreInto(t, c, k, tc.errno, tc.edit)
		})
	}
}

// helperEnv makes the test binary a process that opens a kfd and waits for its
// standard input to end.
const helperEnv = "KFDSIM_TEST_HELPER"

func init() {
	if path := os.Getenv(helperEnv); path != "" {
		fd, err := unix.Open(path, unix.O_RDWR, 0)
		fmt.Println(fd, err)
		os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
}

// Another process's kfd is for its tracer alone, and for CRIU operations.
func TestOnlyTheTracer(t *testing.T) {
	s := startSim(t, Options{})
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+filepath.Join(s.DevDir(), "kfd"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var fd int
	if _, err := fmt.Fscan(out, &fd); err != nil {
		t.Fatal(err)
	}
	dup, err := new(threads).getFD(cmd.Process.Pid, fd)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, sim: s, kfd: dup}
	t.Cleanup(func() {
		unix.Close(dup)
		if cmd.ProcessState == nil {
			cmd.Process.Kill() // the test failed before it could end by itself
			cmd.Wait()
		}
	})
	info := &checkpoint{}
	if errno := info.op(c, abi.KFDCRIUProcessInfo); errno != syscall.EBADF {
		t.Errorf("PROCESS_INFO by a stranger: %v", errno)
	}
	if err := unix.PtraceSeize(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	c.want(syscall.EBADF, dup, abi.KFDIocGetVersion, &abi.KFDGetVersionArgs{})
	if errno := info.op(c, abi.KFDCRIUProcessInfo); errno != 0 {
		t.Errorf("PROCESS_INFO by the tracer: %v (%s)", errno, last(s))
	}
	if info.args.PID != uint32(cmd.Process.Pid) {
		t.Errorf("pid %d", info.args.PID)
	}
	other := make(chan syscall.Errno)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		other <- (&checkpoint{}).op(c, abi.KFDCRIUProcessInfo)
	}()
	if errno := <-other; errno != syscall.EBADF {
		t.Errorf("PROCESS_INFO by another thread of the tracer: %v", errno)
	}
	// Only a stopped process can be let go; the runtime's own signals may have
	// stopped it before.
	if err := unix.PtraceInterrupt(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(cmd.Process.Pid, nil, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	if err := unix.PtraceDetach(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestCRIUNeedsCapability(t *testing.T) {
	s := startSim(t, Options{})
	c := newClient(t, s)
	errs := make(chan syscall.Errno)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its lost capabilities
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capset(&hdr, &data[0]); err != nil {
			t.Error(err)
		}
		errs <- (&checkpoint{}).op(c, abi.KFDCRIUProcessInfo)
	}()
	if errno := <-errs; errno != syscall.EACCES {
		t.Errorf("without capabilities: %v", errno)
	}
	if !strings.Contains(last(s), "CAP_CHECKPOINT_RESTORE") {
		t.Errorf("reason given: %s", last(s))
	}
}
