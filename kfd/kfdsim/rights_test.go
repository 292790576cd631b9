package kfdsim

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// The driver does not map a BO by a file that has no right to it. Such a mapping is noted at RESUME, and one that is
// the process's own is not.
func TestResumeLooksAtMappings(t *testing.T) {
	a := startSim(t, Options{GPUs: []GPU{{}}})
	ca := newClient(t, a)
	demo(ca)
	k := take(t, ca)
	for _, stray := range []bool{false, true} {
		s := startSim(t, Options{GPUs: []GPU{{}}})
		c := newClient(t, s)
		again := restoreInto(t, c, k, 0)
		for _, bo := range again.buckets(t) {
			if bo.AllocFlags&abi.KFDMemVRAM != 0 {
				c.mmap(c.render[0], bo.RestoredOffset, bo.Size)
			}
		}
		if stray {
			f, mem, err := s.NewDmabuf(c.gpus[0], pageSize, false)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			s.mu.Lock()
			for _, b := range s.bos {
				if len(b.mem) > 0 && &b.mem[0] == &mem[0] {
					c.mmap(c.render[0], b.off, b.size)
				}
			}
			s.mu.Unlock()
		}
		resume := &checkpoint{args: abi.KFDCRIUArgs{PID: uint32(os.Getpid())}}
		if errno := resume.op(c, abi.KFDCRIUResume); errno != 0 {
			t.Fatalf("RESUME: %v", errno)
		}
		queuesRun(t, s)
		errs := s.State().Errors
		if stray && (len(errs) != 1 || !strings.Contains(errs[0].What, "which no descriptor of process")) ||
			!stray && len(errs) > 0 {
			t.Errorf("a mapping of another's: %v; noted %+v", stray, errs)
		}
	}
}

// A process that imports, maps, unmaps and closes while it is looked at has a right to all that it maps.
func TestLooksBesideImports(t *testing.T) {
	s := startSim(t, Options{GPUs: []GPU{{}}})
	c := newClient(t, s)
	c.acquire()
	f, _, err := s.NewDmabuf(c.gpus[0], pageSize, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s.mu.Lock()
	p := s.procs[os.Getpid()]
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			s.noteStrayMappings(p)
		}
	}()
	for imports := 0; ; imports++ {
		select {
		case <-done:
			t.Logf("%d imports beside 1000 looks", imports)
			if errs := s.State().Errors; len(errs) > 0 {
				t.Errorf("noted %+v", errs)
			}
			return
		default:
		}
		args := abi.DRMPrimeArgs{FD: int32(f.Fd())}
		c.must(c.render[0], abi.DRMIocPrimeFDToHandle, &args)
		where := struct{ V uint64 }{uint64(args.Handle)}
		c.must(c.render[0], abi.AMDGPUIocGEMMmap, &where)
		m, err := unix.Mmap(c.render[0], int64(where.V), pageSize, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Microsecond)
		if err := unix.Munmap(m); err != nil {
			t.Fatal(err)
		}
		c.must(c.render[0], abi.DRMIocGEMClose, &abi.DRMGEMCloseArgs{Handle: args.Handle})
	}
}
