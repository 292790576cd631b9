package kfdsim

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// Addresses that dma uses in its render node's address space.
const (
	vaIB   = 0x1000000
	vaUser = 0x2000000
	vaBO   = 0x100000000
)

// dma is a context on a render node with an IB, a staging buffer and a BO, as
// a plugin has them.
type dma struct {
	*client
	fd           int
	ctx          uint32
	ib, user, bo uint32
	ibMem        []byte
	userMem      []byte
}

func (c *client) mapVA(fd int, handle uint32, va, size uint64) {
	c.t.Helper()
	c.must(fd, abi.AMDGPUIocGEMVA, &abi.AMDGPUGEMVAArgs{Handle: handle, Operation: abi.AMDGPUVAOpMap,
		Flags: abi.AMDGPUVMPageReadable | abi.AMDGPUVMPageWriteable, VAAddress: va, MapSize: size})
}

func (c *client) gemCreate(fd int, size, domain uint64) uint32 {
	c.t.Helper()
	args := struct {
		abi.AMDGPUGEMCreateIn
	}{abi.AMDGPUGEMCreateIn{BOSize: size, Alignment: pageSize, Domains: domain}}
	c.must(fd, abi.AMDGPUIocGEMCreate, &args)
	return uint32(args.BOSize) // the union's first word
}

func (c *client) gemMmap(fd int, handle uint32, size uint64) []byte {
	c.t.Helper()
	args := struct{ V uint64 }{uint64(handle)}
	c.must(fd, abi.AMDGPUIocGEMMmap, &args)
	return c.mmap(fd, args.V, size)
}

func (c *client) anonymous(size int) []byte {
	c.t.Helper()
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		c.t.Fatal(err)
	}
	c.unmap = append(c.unmap, m)
	return m
}

// newDMA sets up DMA with a BO of vram of size bytes.
func newDMA(t testing.TB, s *Sim, size uint64) *dma {
	t.Helper()
	c := newClient(t, s)
	d := &dma{client: c, fd: c.render[0]}
	ctx := abi.AMDGPUCtxIn{Op: abi.AMDGPUCtxOpAlloc}
	c.must(d.fd, abi.AMDGPUIocCtx, &ctx)
	d.ctx = ctx.Op // the union's first word
	d.ib = c.gemCreate(d.fd, pageSize, abi.AMDGPUDomainGTT)
	d.ibMem = c.gemMmap(d.fd, d.ib, pageSize)
	c.mapVA(d.fd, d.ib, vaIB, pageSize)
	d.userMem = c.anonymous(1 << 20)
	user := abi.AMDGPUGEMUserptrArgs{Addr: slicePtr(d.userMem), Size: 1 << 20,
		Flags: abi.AMDGPUUserptrAnononly | abi.AMDGPUUserptrRegister | abi.AMDGPUUserptrValidate}
	c.must(d.fd, abi.AMDGPUIocGEMUserptr, &user)
	d.user = user.Handle
	c.mapVA(d.fd, d.user, vaUser, 1<<20)
	d.bo = c.gemCreate(d.fd, size, abi.AMDGPUDomainVRAM)
	c.mapVA(d.fd, d.bo, vaBO, size)
	return d
}

// submit runs packets, padded with NOPs, on a ring; bos are those it lists.
func (d *dma) submit(ring uint32, bos []uint32, packets ...uint32) (uint64, syscall.Errno) {
	for len(packets)%8 != 0 {
		packets = append(packets, 0)
	}
	buf, _ := binary.Append(nil, binary.NativeEndian, packets)
	copy(d.ibMem, buf)
	return d.submitIB(bos, abi.AMDGPUCSChunkIB{VAStart: vaIB, IBBytes: uint32(len(buf)), IPType: abi.AMDGPUHWIPDMA,
		Ring: ring})
}

func (d *dma) submitIB(bos []uint32, ib abi.AMDGPUCSChunkIB) (uint64, syscall.Errno) {
	entries := make([]abi.AMDGPUBOListEntry, 0, 8)
	for _, b := range bos {
		entries = append(entries, abi.AMDGPUBOListEntry{BOHandle: b})
	}
	entries = append(entries, abi.AMDGPUBOListEntry{BOHandle: d.ib})
	list := abi.AMDGPUBOListIn{BONumber: uint32(len(entries)), BOInfoSize: 8, BOInfoPtr: ptr(&entries[0])}
	keep := ptrSink
	chunks := [2]abi.AMDGPUCSChunk{
		{ChunkID: abi.AMDGPUChunkBOHandles, LengthDW: 6, ChunkData: ptr(&list)},
		{ChunkID: abi.AMDGPUChunkIB, LengthDW: 8, ChunkData: ptr(&ib)},
	}
	ptrs := [2]uint64{ptr(&chunks[0]), ptr(&chunks[1])}
	cs := struct {
		abi.AMDGPUCSIn
	}{abi.AMDGPUCSIn{CtxID: d.ctx, NumChunks: 2, Chunks: ptr(&ptrs[0])}}
	errno := ioctl(d.fd, abi.AMDGPUIocCS, &cs)
	runtime.KeepAlive(keep)
	runtime.KeepAlive(entries)
	return uint64(cs.CtxID) | uint64(cs.BOListHandle)<<32, errno
}

func (d *dma) wait(ring uint32, seq uint64, timeout uint64) (busy bool, errno syscall.Errno) {
	args := struct {
		abi.AMDGPUWaitCSIn
	}{abi.AMDGPUWaitCSIn{Handle: seq, Timeout: timeout, IPType: abi.AMDGPUHWIPDMA, Ring: ring, CtxID: d.ctx}}
	errno = ioctl(d.fd, abi.AMDGPUIocWaitCS, &args)
	return errno == 0 && args.Handle != 0, errno
}

// run submits and waits.
func (d *dma) run(bos []uint32, packets ...uint32) syscall.Errno {
	d.t.Helper()
	seq, errno := d.submit(0, bos, packets...)
	if errno != 0 {
		return errno
	}
	busy, errno := d.wait(0, seq, 1<<62)
	if busy {
		d.t.Error("wait without end returned busy")
	}
	return errno
}

func copyPacket(dst, src, count uint64) []uint32 {
	return []uint32{1, uint32(count), 0, uint32(src), uint32(src >> 32), uint32(dst), uint32(dst >> 32)}
}

func (d *dma) all() []uint32 { return []uint32{d.user, d.bo} }

func TestSDMACopiesBothWays(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{}}})
	d := newDMA(t, s, 1<<20)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(d.userMem)
	want := string(d.userMem)
	if errno := d.run(d.all(), copyPacket(vaBO, vaUser, 1<<20-1)...); errno != 0 {
		t.Fatal(errno)
	}
	if got := d.gemMmap(d.fd, d.bo, 1<<20); string(got) != want {
		t.Error("vram differs from what was copied to it")
	}
	clear(d.userMem)
	packets := append(copyPacket(vaUser, vaBO, 1<<19-1), copyPacket(vaUser+1<<19, vaBO+1<<19, 1<<19-1)...)
	if errno := d.run(d.all(), packets...); errno != 0 {
		t.Fatal(errno)
	}
	if string(d.userMem) != want {
		t.Error("staging buffer differs from vram")
	}
	if errno := d.run([]uint32{d.bo}, 11|2<<30, uint32(vaBO&(1<<32-1)), vaBO>>32, 0xdeadbeef, 4095); errno != 0 {
		t.Fatal(errno)
	}
	got := d.gemMmap(d.fd, d.bo, 1<<20)
	if binary.LittleEndian.Uint32(got[4092:]) != 0xdeadbeef || string(got[4096:]) != want[4096:] {
		t.Error("constant fill is not of 4096 bytes")
	}
}

// A submission that does what it must not gets an error, names it, and makes
// its context useless.
func TestSDMAFaults(t *testing.T) {
	const size = 64 << 10
	for _, tc := range []struct {
		name    string
		bos     func(*dma) []uint32
		packets []uint32
		why     string
	}{
		{"beyond the bo", (*dma).all, copyPacket(vaBO+size-4096, vaUser, 4096), "not mapped"},
		{"one byte too many", (*dma).all, copyPacket(vaBO, vaUser, size), "not mapped"},
		{"source not mapped", (*dma).all, copyPacket(vaBO, 0x9000000, 4095), "not mapped"},
		{"bo not listed", func(d *dma) []uint32 { return []uint32{d.user} }, copyPacket(vaBO, vaUser, 4095),
			"not in the submission's bo list"},
		{"too long a packet", (*dma).all, copyPacket(vaBO, vaUser, 0x400000), "at most 0x400000"},
		{"illegal operation", (*dma).all, []uint32{0x77}, "illegal sdma operation"},
		{"cut off", (*dma).all, []uint32{0, 0, 0, 0, 0, 0, 1, 0}, "cut off"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startSim(t, Options{GPUs: []GPU{{}}})
			d := newDMA(t, s, size)
			if errno := d.run(tc.bos(d), tc.packets...); errno != syscall.ETIME {
				t.Fatalf("submission: %v", errno)
			}
			errs := s.State().Errors
			if len(errs) != 1 || !strings.Contains(errs[0].What, tc.why) {
				t.Errorf("simulator noted %+v, not %q", errs, tc.why)
			}
			if errno := d.run(d.all(), copyPacket(vaBO, vaUser, 4095)...); errno != syscall.ECANCELED {
				t.Errorf("guilty context took a submission: %v", errno)
			}
		})
	}
}

// A v7 engine that is told nothing of compression corrupts data now and then; to
// earlier ones the same bits say something else.
func TestSDMACompression(t *testing.T) {
	lo, hi := uint32(vaBO&(1<<32-1)), uint32(vaBO>>32)
	for v := SDMAv2; v <= SDMAv7; v++ {
		for _, tc := range []struct {
			name string
			bit  uint32
			ib   []uint32
		}{
			{"copy", sdmaCopyCPV, append(copyPacket(vaBO, vaBO+2048, 1023), 0)},
			{"fill", sdmaFillCompress, []uint32{11, lo, hi, 0, 1023, 0, 0, 0}},
		} {
			for _, set := range []bool{false, true} {
				words := slices.Clone(tc.ib)
				if set {
					words[0] |= tc.bit
				}
				var ib []byte
				for _, w := range words {
					ib = binary.LittleEndian.AppendUint32(ib, w)
				}
				x := sdmaRun{access: fuzzVM(), version: v}
				if err := x.run(ib); (err == nil) != (set == (v == SDMAv7)) {
					t.Errorf("%s of v%d with the bit set %v: %v", tc.name, v, set, err)
				}
			}
		}
	}
}

func TestSubmissionChecks(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{}}})
	d := newDMA(t, s, 4096)
	ok := abi.AMDGPUCSChunkIB{VAStart: vaIB, IBBytes: 32, IPType: abi.AMDGPUHWIPDMA}
	for _, tc := range []struct {
		name string
		edit func(*abi.AMDGPUCSChunkIB)
	}{
		{"not padded", func(ib *abi.AMDGPUCSChunkIB) { ib.IBBytes = 28 }},
		{"not aligned", func(ib *abi.AMDGPUCSChunkIB) { ib.VAStart += 4 }},
		{"no such ring", func(ib *abi.AMDGPUCSChunkIB) { ib.Ring = 2 }},
		{"graphics", func(ib *abi.AMDGPUCSChunkIB) { ib.IPType = abi.AMDGPUHWIPGFX }},
	} {
		ib := ok
		tc.edit(&ib)
		if _, errno := d.submitIB(nil, ib); errno != syscall.EINVAL {
			t.Errorf("%s: %v", tc.name, errno)
		}
	}
	if _, errno := d.submitIB([]uint32{99}, ok); errno != syscall.ENOENT {
		t.Errorf("bo that does not exist: %v", errno)
	}
	if _, errno := d.wait(0, 1000, 0); errno != syscall.EINVAL {
		t.Errorf("wait for a submission never made: %v", errno)
	}
	va := abi.AMDGPUGEMVAArgs{Handle: d.bo, Operation: abi.AMDGPUVAOpMap, Flags: abi.AMDGPUVMPageReadable,
		VAAddress: vaBO, MapSize: 4096}
	for _, tc := range []struct {
		name  string
		edit  func(*abi.AMDGPUGEMVAArgs)
		errno syscall.Errno
	}{
		{"taken", func(*abi.AMDGPUGEMVAArgs) {}, syscall.EINVAL},
		{"reserved", func(a *abi.AMDGPUGEMVAArgs) { a.VAAddress = 4096 }, syscall.EINVAL},
		{"hole", func(a *abi.AMDGPUGEMVAArgs) { a.VAAddress = 1 << 47 }, syscall.EINVAL},
		{"beyond the bo", func(a *abi.AMDGPUGEMVAArgs) { a.VAAddress, a.MapSize = 1<<40, 8192 }, syscall.EINVAL},
		{"half a page", func(a *abi.AMDGPUGEMVAArgs) { a.VAAddress, a.MapSize = 1<<40, 2048 }, syscall.EINVAL},
		{"no handle", func(a *abi.AMDGPUGEMVAArgs) { a.Handle = 77 }, syscall.ENOENT},
		{"unmap of nothing", func(a *abi.AMDGPUGEMVAArgs) { a.Operation, a.VAAddress = abi.AMDGPUVAOpUnmap, 1<<40 },
			syscall.ENOENT},
		{"unmap", func(a *abi.AMDGPUGEMVAArgs) { a.Operation = abi.AMDGPUVAOpUnmap }, 0},
	} {
		a := va
		tc.edit(&a)
		if errno := ioctl(d.fd, abi.AMDGPUIocGEMVA, &a); errno != tc.errno {
			t.Errorf("va %s: %v, want %v", tc.name, errno, tc.errno)
		}
	}
}

func TestUserptrChecks(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{}}})
	c := newClient(t, s)
	const flags = abi.AMDGPUUserptrAnononly | abi.AMDGPUUserptrRegister | abi.AMDGPUUserptrValidate
	mem := c.anonymous(8192)
	addr := slicePtr(mem)
	c.want(syscall.EINVAL, c.render[0], abi.AMDGPUIocGEMUserptr,
		&abi.AMDGPUGEMUserptrArgs{Addr: addr + 8, Size: 4096, Flags: flags})
	c.want(syscall.EACCES, c.render[0], abi.AMDGPUIocGEMUserptr, &abi.AMDGPUGEMUserptrArgs{Addr: addr, Size: 4096})
	c.want(syscall.EFAULT, c.render[0], abi.AMDGPUIocGEMUserptr,
		&abi.AMDGPUGEMUserptrArgs{Addr: 0x10000, Size: 4096, Flags: flags})
}

// A link keeps its rate, and its account says how busy it was.
func TestRateAndAccount(t *testing.T) {
	const size, rate = 1 << 20, 50e6
	s := startSim(t, Options{GPUs: []GPU{{DMARate: rate}}})
	d := newDMA(t, s, size)
	start := time.Now()
	for range 8 {
		if errno := d.run(d.all(), copyPacket(vaBO, vaUser, size-1)...); errno != 0 {
			t.Fatal(errno)
		}
	}
	took := time.Since(start)
	want := time.Duration(8 * size / rate * 1e9)
	if took < want-maxLag {
		t.Errorf("8 MiB took %v, less than the %v of the link", took, want)
	}
	st := s.DMAStats(true)[0]
	if st.Bytes != 8*size || st.Jobs != 8 {
		t.Errorf("account of %d bytes in %d jobs", st.Bytes, st.Jobs)
	}
	if st.Busy > st.Span || st.Busy < want-maxLag || st.Wire < want-time.Millisecond ||
		st.Wire > want+time.Millisecond {
		t.Errorf("busy %v of %v, on the wire %v, expected %v", st.Busy, st.Span, st.Wire, want)
	}
	time.Sleep(50 * time.Millisecond)
	if st := s.DMAStats(false)[0]; st.Bytes != 0 || st.Busy != 0 || st.Span != 0 {
		t.Errorf("new account begins with %+v", st)
	}
}

func TestInjectedFaults(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{}}})
	d := newDMA(t, s, 4096)
	inject := func(f Fault) {
		t.Helper()
		if err := s.Inject(f); err != nil {
			t.Fatal(err)
		}
	}
	inject(Fault{Kind: FaultIoctl, Request: abi.AMDGPUIocCS.String(), Errno: syscall.EBUSY, After: 1, Count: 2})
	var got []syscall.Errno
	for range 4 {
		got = append(got, d.run(d.all(), copyPacket(vaBO, vaUser, 4095)...))
	}
	if got[0] != 0 || got[1] != syscall.EBUSY || got[2] != syscall.EBUSY || got[3] != 0 {
		t.Errorf("submissions returned %v", got)
	}
	if n := s.ClearFaults(); n != 2 {
		t.Errorf("fault struck %d times", n)
	}
	inject(Fault{Kind: FaultStall, Delay: 30 * time.Millisecond, Count: 1})
	seq, errno := d.submit(1, d.all(), copyPacket(vaBO, vaUser, 4095)...)
	if errno != 0 {
		t.Fatal(errno)
	}
	if busy, errno := d.wait(1, seq, 0); !busy || errno != 0 {
		t.Errorf("stalled submission: busy %v, %v", busy, errno)
	}
	if busy, errno := d.wait(1, seq, 1<<62); busy || errno != 0 {
		t.Errorf("after the stall: busy %v, %v", busy, errno)
	}
	inject(Fault{Kind: FaultDMA, GPU: d.gpus[0], Count: 1})
	if errno := d.run(d.all(), copyPacket(vaBO, vaUser, 4095)...); errno != syscall.ETIME {
		t.Errorf("hung submission: %v", errno)
	}
	for _, f := range []Fault{{}, {Kind: "other"}, {Kind: FaultIoctl}, {Kind: FaultStall},
		{Kind: FaultDMA, Count: -1}} {
		if s.Inject(f) == nil {
			t.Errorf("fault %+v was taken", f)
		}
	}
}

// A full VRAM refuses KFD memory; freed memory is there again.
func TestVRAMIsBounded(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{VRAM: 1 << 20}}})
	c := newClient(t, s)
	c.acquire()
	a := c.alloc(0, 768<<10, abi.KFDMemVRAM|rw)
	c.want(syscall.ENOMEM, c.kfd, abi.KFDIocAllocMemory,
		&abi.KFDAllocMemoryArgs{VAAddr: 1 << 40, Size: 512 << 10, GPUID: c.gpus[0], Flags: abi.KFDMemVRAM})
	c.want(syscall.EBUSY, c.kfd, abi.KFDIocFreeMemory, &abi.KFDFreeMemoryArgs{Handle: a.Handle})
	id := c.gpus[0]
	c.must(c.kfd, abi.KFDIocUnmapMemory,
		&abi.KFDMapMemoryArgs{Handle: a.Handle, DeviceIDsArrayPtr: ptr(&id), NDevices: 1})
	c.must(c.kfd, abi.KFDIocFreeMemory, &abi.KFDFreeMemoryArgs{Handle: a.Handle})
	c.must(c.kfd, abi.KFDIocAllocMemory,
		&abi.KFDAllocMemoryArgs{VAAddr: 1 << 40, Size: 512 << 10, GPUID: c.gpus[0], Flags: abi.KFDMemVRAM})
}

// Who asks for memory of a full VRAM takes it from KFD processes: their queues stand still for a while.
func TestVRAMUnderPressure(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{VRAM: 1 << 20}, {}}})
	c := newClient(t, s)
	c.acquire()
	c.alloc(0, 768<<10, abi.KFDMemVRAM|rw)
	create := func(gpu int) {
		c.must(c.render[gpu], abi.AMDGPUIocGEMCreate,
			&struct{ abi.AMDGPUGEMCreateIn }{abi.AMDGPUGEMCreateIn{BOSize: 512 << 10, Domains: abi.AMDGPUDomainVRAM}})
	}
	create(1)
	if n := s.State().Processes[0].Evictions; n != 0 {
		t.Errorf("%d evictions where there is room", n)
	}
	create(0)
	if n := s.State().Processes[0].Evictions; n != 1 {
		t.Errorf("%d evictions where there is none", n)
	}
	queuesRun(t, s)
}

// Behind a small BAR, PUBLIC memory is refused and other VRAM cannot be mapped.
func TestSmallBAR(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{VRAM: 1 << 30, VisibleVRAM: 256 << 20}}})
	c := newClient(t, s)
	c.acquire()
	c.want(syscall.EINVAL, c.kfd, abi.KFDIocAllocMemory,
		&abi.KFDAllocMemoryArgs{Size: 4096, GPUID: c.gpus[0], Flags: abi.KFDMemVRAM | abi.KFDMemPublic})
	a := c.alloc(0, 4096, abi.KFDMemVRAM|abi.KFDMemWritable)
	exp := abi.KFDExportDmabufArgs{Handle: a.Handle}
	c.must(c.kfd, abi.KFDIocExportDmabuf, &exp)
	prime := abi.DRMPrimeArgs{FD: int32(c.install(exp.DmabufFD))}
	c.must(c.render[0], abi.DRMIocPrimeFDToHandle, &prime)
	c.want(syscall.EPERM, c.render[0], abi.AMDGPUIocGEMMmap, &struct{ V uint64 }{uint64(prime.Handle)})
}

// What this machine moves at most: one submission of 1 MiB at a time, waited
// for.
func BenchmarkSDMACopy(b *testing.B) {
	s := startSim(b, Options{GPUs: []GPU{{Resident: 256 << 20}}})
	d := newDMA(b, s, 128<<20)
	b.SetBytes(1 << 20)
	b.ResetTimer()
	for i := range b.N {
		at := uint64(i%128) << 20
		if errno := d.run(d.all(), copyPacket(vaBO+at, vaUser, 1<<20-1)...); errno != 0 {
			b.Fatal(errno)
		}
	}
	st := s.DMAStats(false)[0]
	b.ReportMetric(float64(st.Bytes)/st.Busy.Seconds()/1e9, "GB/s-busy")
}
