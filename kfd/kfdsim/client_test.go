package kfdsim

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// startSim runs a simulator for one test. The test process is its application:
// all descriptors must be closed before the test ends.
func startSim(t testing.TB, opts Options) *Sim {
	t.Helper()
	opts.Dir = t.TempDir()
	s, err := Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// client is an application: a descriptor of /dev/kfd and one of every render
// node.
type client struct {
	t       testing.TB
	sim     *Sim
	kfd     int
	render  []int
	gpus    []uint32
	unmap   [][]byte
	nextVA  uint64
	dmabufs []int
}

func newClient(t testing.TB, s *Sim) *client {
	t.Helper()
	c := &client{t: t, sim: s, nextVA: 0x10000000}
	c.kfd = c.open("kfd")
	for _, g := range s.opts.GPUs {
		c.render = append(c.render, c.open(fmt.Sprintf("dri/renderD%d", g.RenderMinor)))
		c.gpus = append(c.gpus, g.ID)
	}
	t.Cleanup(c.close)
	return c
}

func (c *client) open(name string) int {
	c.t.Helper()
	fd, err := unix.Open(filepath.Join(c.sim.DevDir(), name), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		c.t.Fatalf("open %s: %v", name, err)
	}
	return fd
}

func (c *client) close() {
	for _, m := range c.unmap {
		unix.Munmap(m)
	}
	for _, fd := range append(append(c.render, c.dmabufs...), c.kfd) {
		unix.Close(fd)
	}
}

func (c *client) must(fd int, req abi.Request, args any) {
	c.t.Helper()
	if errno := ioctl(fd, req, args); errno != 0 {
		c.t.Fatalf("%v: %v (%v)", req, errno, last(c.sim))
	}
}

// want issues a request that has to fail in a certain way.
func (c *client) want(errno syscall.Errno, fd int, req abi.Request, args any) {
	c.t.Helper()
	if got := ioctl(fd, req, args); got != errno {
		c.t.Fatalf("%v: got %v, want %v (%v)", req, got, errno, last(c.sim))
	}
}

func last(s *Sim) string {
	if r := s.recent.snapshot(); len(r) > 0 {
		return r[len(r)-1]
	}
	return "nothing refused"
}

// acquire binds the process to every GPU.
func (c *client) acquire() {
	c.t.Helper()
	for i, id := range c.gpus {
		c.must(c.kfd, abi.KFDIocAcquireVM, &abi.KFDAcquireVMArgs{DRMFD: uint32(c.render[i]), GPUID: id})
	}
}

const rw = abi.KFDMemWritable | abi.KFDMemPublic

// alloc makes an allocation on a GPU, mapped to it.
func (c *client) alloc(gpu int, size uint64, flags uint32) abi.KFDAllocMemoryArgs {
	c.t.Helper()
	args := abi.KFDAllocMemoryArgs{VAAddr: c.nextVA, Size: size, GPUID: c.gpus[gpu], Flags: flags}
	c.nextVA += pageAlign(size) + 1<<20
	c.must(c.kfd, abi.KFDIocAllocMemory, &args)
	c.mapTo(args.Handle, gpu)
	return args
}

func (c *client) mapTo(handle uint64, gpu int) {
	c.t.Helper()
	id := c.gpus[gpu]
	c.must(c.kfd, abi.KFDIocMapMemory, &abi.KFDMapMemoryArgs{Handle: handle, DeviceIDsArrayPtr: ptr(&id), NDevices: 1})
}

// mmap maps a range of a device file.
func (c *client) mmap(fd int, off, size uint64) []byte {
	c.t.Helper()
	m, err := unix.Mmap(fd, int64(off), int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		c.t.Fatalf("mmap at %#x: %v", off, err)
	}
	c.unmap = append(c.unmap, m)
	return m
}

// install opens what a token stands for, as kfdsim.h does.
func (c *client) install(token uint32) int {
	c.t.Helper()
	claim := claimArgs{Token: token}
	c.must(c.kfd, iocClaim, &claim)
	fd, err := unix.OpenByHandleAt(c.kfd, unix.NewFileHandle(claim.Type, claim.Handle[:claim.Bytes]),
		unix.O_RDWR|unix.O_CLOEXEC)
	if err != nil {
		c.t.Fatalf("open by handle: %v", err)
	}
	c.must(c.kfd, iocDrop, &struct{ Token uint32 }{token})
	c.dmabufs = append(c.dmabufs, fd)
	return fd
}

func TestDevices(t *testing.T) {
	s := startSim(t, Options{})
	c := newClient(t, s)
	var v abi.KFDGetVersionArgs
	c.must(c.kfd, abi.KFDIocGetVersion, &v)
	if v.Major != 1 || v.Minor != defaultMinor {
		t.Errorf("version %d.%d", v.Major, v.Minor)
	}
	for _, name := range []string{"kfd", "dri/renderD128", "dri/renderD129"} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(s.DevDir(), name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Nlink != 1 || st.Ino&inoTagMask != inoTag {
			t.Errorf("%s: nlink %d, inode %#x", name, st.Nlink, st.Ino)
		}
	}
	if _, err := os.Stat(filepath.Join(s.SysDir(), "class/kfd/kfd/topology/nodes/2/gpu_id")); err != nil {
		t.Error(err)
	}
}

// A node without links has the folder for them, and properties can be set.
func TestTopologyTree(t *testing.T) {
	sys := filepath.Join(t.TempDir(), "sys")
	opts := Options{CPUNodes: 2, GPUs: []GPU{{Properties: map[string]uint64{"num_gws": 7}}}}
	if err := WriteTopology(sys, opts); err != nil {
		t.Fatal(err)
	}
	nodes := filepath.Join(sys, "class/kfd/kfd/topology/nodes")
	for node, links := range []int{1, 0, 1} {
		list, err := os.ReadDir(filepath.Join(nodes, fmt.Sprint(node), "io_links"))
		if err != nil || len(list) != links {
			t.Errorf("node %d: %d links, %v", node, len(list), err)
		}
	}
	b, err := os.ReadFile(filepath.Join(nodes, "2/properties"))
	if err != nil || !strings.Contains(string(b), "num_gws 7\n") {
		t.Errorf("%v: %s", err, b)
	}
}

func TestMappingsAreReal(t *testing.T) {
	s := startSim(t, Options{})
	c := newClient(t, s)
	c.acquire()
	a := c.alloc(0, 3*pageSize, abi.KFDMemVRAM|rw)
	b := c.alloc(0, pageSize, abi.KFDMemGTT|rw)
	db := c.alloc(0, doorbellSlice, abi.KFDMemDoorbell|abi.KFDMemWritable)
	mmio := c.alloc(0, pageSize, abi.KFDMemMMIORemap|abi.KFDMemWritable)
	for _, m := range []struct {
		fd   int
		args abi.KFDAllocMemoryArgs
	}{{c.render[0], a}, {c.render[0], b}, {c.kfd, db}, {c.kfd, mmio}} {
		mem := c.mmap(m.fd, m.args.MmapOffset, m.args.Size)
		for i := range mem {
			mem[i] = byte(i * 7)
		}
		s.mu.Lock()
		acc := &access{sim: s, vm: s.procs[os.Getpid()].pdds[0].drm.vm}
		s.mu.Unlock()
		got := make([]byte, len(mem))
		if err := acc.read(m.args.VAAddr, got); err != nil {
			t.Fatal(err)
		}
		if string(got) != string(mem) {
			t.Errorf("gpu does not see what the cpu wrote at %#x", m.args.VAAddr)
		}
		if err := acc.write(m.args.VAAddr+8, []byte("written by the gpu")); err != nil {
			t.Fatal(err)
		}
		if string(mem[8:26]) != "written by the gpu" {
			t.Errorf("cpu does not see what the gpu wrote at %#x", m.args.VAAddr)
		}
	}
}

func TestDmabuf(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{}}})
	c := newClient(t, s)
	c.acquire()
	a := c.alloc(0, 5*pageSize, abi.KFDMemVRAM|rw)
	mem := c.mmap(c.render[0], a.MmapOffset, a.Size)
	copy(mem, "shared")
	exp := abi.KFDExportDmabufArgs{Handle: a.Handle}
	c.must(c.kfd, abi.KFDIocExportDmabuf, &exp)
	fd := c.install(exp.DmabufFD)
	if size, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil || size != 5*pageSize {
		t.Errorf("size of dmabuf: %d, %v", size, err)
	}
	info := abi.KFDGetDmabufInfoArgs{DmabufFD: uint32(fd)}
	c.must(c.kfd, abi.KFDIocGetDmabufInfo, &info)
	if info.Size != a.Size || info.GPUID != c.gpus[0] {
		t.Errorf("dmabuf info %+v", info)
	}
	drm := c.open("dri/renderD128")
	defer unix.Close(drm)
	prime := abi.DRMPrimeArgs{FD: int32(fd)}
	c.must(drm, abi.DRMIocPrimeFDToHandle, &prime)
	again := abi.DRMPrimeArgs{FD: int32(fd)}
	c.must(drm, abi.DRMIocPrimeFDToHandle, &again)
	if prime.Handle != again.Handle {
		t.Errorf("two handles, %d and %d, for one dmabuf", prime.Handle, again.Handle)
	}
	mm := struct{ V uint64 }{uint64(prime.Handle)}
	c.must(drm, abi.AMDGPUIocGEMMmap, &mm)
	if other := c.mmap(drm, mm.V, a.Size); string(other[:6]) != "shared" {
		t.Errorf("imported bo holds %q", other[:6])
	}
	imp := abi.KFDImportDmabufArgs{VAAddr: 0x700000000, GPUID: c.gpus[0], DmabufFD: uint32(fd)}
	c.must(c.kfd, abi.KFDIocImportDmabuf, &imp)
	c.want(syscall.EBADF, drm, abi.DRMIocPrimeFDToHandle, &abi.DRMPrimeArgs{FD: 0})
	c.want(syscall.EINVAL, drm, abi.DRMIocPrimeFDToHandle, &abi.DRMPrimeArgs{FD: int32(c.kfd)})
	if _, err := unix.Mmap(fd, 0, pageSize, unix.PROT_READ, unix.MAP_SHARED); err != unix.ENODEV {
		t.Errorf("mmap of a dmabuf: %v", err)
	}
	s.mu.Lock()
	holders := len(s.dmabufs)
	s.mu.Unlock()
	if holders != 1 {
		t.Errorf("%d dmabufs for one bo", holders)
	}
}
