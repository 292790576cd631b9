package preflight

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryKindHasARule(t *testing.T) {
	text, err := os.ReadFile("rules.go")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(text), "\n)")
	kinds := map[string]bool{}
	for line := range strings.Lines(head) {
		if _, value, ok := strings.Cut(strings.TrimSpace(line), ` = "`); ok {
			kinds[strings.TrimSuffix(value, `"`)] = true
		}
	}
	if got := slices.Sorted(maps.Keys(rules)); len(kinds) < 30 || !slices.Equal(got, slices.Sorted(maps.Keys(kinds))) {
		t.Errorf("rules are for %v, kinds are %v", got, slices.Sorted(maps.Keys(kinds)))
	}
	for kind, r := range rules {
		if strings.Contains(r.what+r.do, "\n") || r.what == "" || !slices.Contains(severity, r.effect) {
			t.Errorf("%s: %+v", kind, r)
		}
	}
}

// Lines of processes on an H200, driver 580.159.04.
const (
	context0 = "200600000-200800000 rw-s 00000000 00:06 175                              /dev/nvidia0\n"
	context1 = "205a00000-205c00000 rw-s 00000000 00:06 176                              /dev/nvidia1\n"
	control  = "200800000-204000000 rw-s 00000000 00:06 174                              /dev/nvidiactl\n"
	uvm      = "204a00000-204c00000 rw-s 204a00000 00:06 177                             /dev/nvidia-uvm\n"
	managed  = "7f312a000000-7f312a400000 rw-s 7f312a000000 00:06 177                    /dev/nvidia-uvm\n"
	doorbell = "7fae2d849000-7fae2d859000 -w-s 00000000 00:06 176                        /dev/nvidia1\n"
	library  = "7f0000000000-7f0000100000 r-xp 00000000 fe:00 7                          " +
		"/usr/lib/libcuda.so.580.159.04\n"
)

func TestGPUTraces(t *testing.T) {
	for _, tc := range []struct {
		name, maps string
		contexts   string
		inherited  bool
		managed    uint64
	}{
		{"one GPU", context0 + control + uvm + doorbell, "/dev/nvidia0", false, 0},
		{"two GPUs", context0 + context1 + control + uvm, "/dev/nvidia0, /dev/nvidia1", false, 0},
		{"forked", context0 + control + doorbell, "/dev/nvidia0", true, 0},
		{"managed memory", context0 + control + uvm + managed, "/dev/nvidia0", false, 4 << 20},
		{"initialised only", control + doorbell, "", false, 0},
	} {
		var g gpuTraces
		err := eachMapping(strings.NewReader(tc.maps+library), func(m mapping) error {
			if strings.HasPrefix(m.path, "/dev/nvidia") {
				g.mapped(m)
			}
			return nil
		})
		if err != nil || minors(g.contexts) != tc.contexts || g.inherited() != tc.inherited ||
			g.managed != tc.managed ||
			!g.used() {
			t.Errorf("%s: %+v, %v", tc.name, g, err)
		}
	}
}

func TestNCCL(t *testing.T) {
	for _, tc := range []struct {
		env  string
		lost bool
	}{
		{"", true}, {"NCCL_P2P_DISABLE=1", true}, {"NCCL_CUMEM_ENABLE=0", true},
		{"NCCL_CUMEM_HOST_ENABLE=0", true}, {"NCCL_P2P_DISABLE=1 NCCL_CUMEM_ENABLE=0", false},
		{"NCCL_P2P_DISABLE=1 NCCL_CUMEM_HOST_ENABLE=0", false}, {"NCCL_P2P_LEVEL=LOC NCCL_CUMEM_ENABLE=0", false},
		{"NCCL_P2P_DISABLE=0 NCCL_CUMEM_ENABLE=0", true},
	} {
		text := "A=1\x00" + strings.ReplaceAll(tc.env, " ", "\x00") + "\x00"
		env, err := environment(strings.NewReader(text), ncclVariables...)
		if got := ncclLost(env); err != nil || (got != "") != tc.lost {
			t.Errorf("%s: %q, %v", tc.env, got, err)
		}
		file := "# NCCL_P2P_DISABLE=9\n" + strings.ReplaceAll(tc.env, " ", "\n") + "\n"
		if got := ncclLost(ncclConf(strings.NewReader(file))); (got != "") != tc.lost {
			t.Errorf("%s in a file: %q", tc.env, got)
		}
	}
}

// The pid in the name of a file of CUDA IPC tells who shares from who is shared with.
func TestIPC(t *testing.T) {
	for path, want := range map[string]int{
		"/dev/shm/cuda.shm.0.278.1": 632, "/dev/shm/cuda.shm.3e8.ffffffff.1": 0,
		"/dev/shm/cuda.shm.0.278": 0, "/dev/shm/cuda.shm.0.x.1": 0, "/dev/shm/x": 0,
	} {
		if got, ok := ipcMaker(path); got != want && ok || ok != (want > 0) {
			t.Errorf("%s: %d, %v", path, got, ok)
		}
	}
	for self, lost := range map[string]bool{"632": false, "946": true} {
		user := &task{
			pid:    946,
			nspids: []string{"946", self},
			found:  map[string]*details{},
			gpu:    gpuTraces{open: 1, ipc: []int{632}},
		}
		if mine, err := user.judgeCUDA(t.Context(), &Options{}); !mine || err != nil ||
			(user.found[kindIPC] != nil) != lost {
			t.Errorf("process %s: %v, %v, %v", self, mine, err, user.found)
		}
	}
}

// Pools of several GPUs are told by the environment.
func TestPools(t *testing.T) {
	for env, want := range map[string]string{
		"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync": kindPools, "TF_GPU_ALLOCATOR=cuda_malloc_async": kindPools,
		"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": kindPeers,
		"A=1": kindPeers,
	} {
		cmd := exec.Command("sleep", "600")
		cmd.Env = []string{env}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The kernel tells of a program's environment a moment after it has begun.
		for path := (&task{pid: cmd.Process.Pid}).path("environ"); ; time.Sleep(time.Millisecond) {
			if text, err := os.ReadFile(path); err != nil || len(text) > 0 {
				break
			}
		}
		user := &task{
			pid:   cmd.Process.Pid,
			found: map[string]*details{},
			gpu:   gpuTraces{contexts: map[int]bool{0: true, 1: true}},
		}
		err := user.judgePools()
		if err != nil || len(user.found) != 1 || user.found[want] == nil {
			t.Errorf("%s: %v, %v", env, user.found, err)
		}
		cmd.Process.Kill()
		cmd.Wait()
	}
}

// XLA is recognised by the file that it is loaded from, and refused on several GPUs whatever NCCL is told; on one it is
// not.
func TestXLA(t *testing.T) {
	name := filepath.Join(t.TempDir(), "xla_cuda_plugin.so")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	for gpus, want := range map[int]bool{1: false, 2: true} {
		for _, nccl := range []bool{false, true} {
			user := &task{pid: os.Getpid(), found: map[string]*details{}}
			if err := user.readMappings(t.Context(), &family{}); err != nil || !user.gpu.xla {
				t.Fatalf("the plugin is not seen, %v", err)
			}
			user.gpu.nccl, user.gpu.contexts = nccl, map[int]bool{}
			for n := range gpus {
				user.gpu.contexts[n] = true
			}
			if err := user.judgeSeveralGPUs(nccl); err != nil || (user.found[kindXLA] != nil) != want {
				t.Errorf("%d GPUs, NCCL %v: %v, %v", gpus, nccl, user.found, err)
			}
		}
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]int64{"4M": 4 << 20, "1g": 1 << 30,
		"17": 17, "8K": 8 << 10, "": 0, "-1": 0, "9999999999G": 0, "x": 0} {
		if got := parseSize(s); got != want {
			t.Errorf("%q is %d, want %d", s, got, want)
		}
	}
}

func TestAddress(t *testing.T) {
	for s, want := range map[string]string{
		"0100007F:1F90": "127.0.0.1 port 8080", "00000000000000000000000001000000:0016": "::1 port 22",
		"": "", "zz:1": "zz:1", "0100007F": "0100007F",
	} {
		if got := address(s); got != want {
			t.Errorf("%q is %q, want %q", s, got, want)
		}
	}
}

// closeInherited lets go of what this test was started with.
const closeInherited = "for fd in 3 4 5 6 7 8 9; do eval \"exec $fd>&-\"; done; "

// Processes come and go by the hundred while the tree is looked at: that is no error, and no finding.
func TestRacingExits(t *testing.T) {
	cmd := exec.Command("sh", "-c", closeInherited+"while :; do (exec 3</dev/null; true) & true | true; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
	}()
	for range 200 {
		r, err := Look(t.Context(), Options{Root: cmd.Process.Pid})
		if err != nil || len(r.Findings) > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
}

// A descriptor that is another file's from moment to moment is judged by what it is, never by the name of one and the
// nature of the other.
func TestReplacedDescriptor(t *testing.T) {
	for what, flip := range map[string]string{
		"a file and a pipe":          "exec 4</dev/null; while :; do exec 3<&4; exec 3<&0; done",
		"a deleted file and another": "exec 4<gone 5<kept; rm gone; while :; do exec 3<&4; exec 3<&5; done",
	} {
		dir := t.TempDir()
		for _, name := range []string{"gone", "kept"} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "-c", closeInherited+flip)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			r, err := Look(t.Context(), Options{Root: cmd.Process.Pid})
			if err != nil || len(r.Findings) > 0 {
				t.Errorf("%s, look %d: %+v, %v", what, i, r, err)
				break
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
	}
}

// A range where a file and a memfd are mapped from moment to moment: that a memfd has no name is no finding.
func TestReplacedMapping(t *testing.T) {
	const size = 4 << 20
	gone, err := os.CreateTemp(t.TempDir(), "gone")
	if err != nil {
		t.Fatal(err)
	}
	defer gone.Close()
	mem, err := unix.MemfdCreate("mem", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(mem)
	_, err = unix.Write(mem, make([]byte, size))
	if err := errors.Join(err, gone.Truncate(size), os.Remove(gone.Name())); err != nil {
		t.Fatal(err)
	}
	at, err := unix.MmapPtr(mem, 0, nil, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.MunmapPtr(at, size)
	ctx, stop := context.WithCancel(t.Context())
	var flips sync.WaitGroup
	flips.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			fd := []int{mem, int(gone.Fd())}[i%2]
			if _, err := unix.MmapPtr(fd, 0, at, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 300 {
		self := &task{pid: os.Getpid(), found: map[string]*details{}, files: map[file]bool{}}
		if err := self.readMappings(t.Context(), &family{o: &Options{}}); err != nil || self.found[kindGhost] != nil {
			t.Errorf("look %d: %v, %v", i, self.found[kindGhost], err)
			break
		}
	}
	stop()
	flips.Wait()
}

// A file may lie so deep that no link of /proc can tell its name: it is judged nevertheless.
func TestDeepMapping(t *testing.T) {
	const levels, size = 25, 2 << 20
	name := strings.Repeat("n", 200)
	top, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(top)
	dirs := []int{top}
	for range levels {
		last := dirs[len(dirs)-1]
		if err := unix.Mkdirat(last, name, 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(last, name, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, next)
	}
	f, err := unix.Openat(dirs[levels], "x", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(f, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(f, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	unix.Close(f)
	if err := unix.Unlinkat(dirs[levels], "x", 0); err != nil {
		t.Fatal(err)
	}
	g, err := unix.Openat(dirs[levels], "y", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(g)
	if _, err := Look(t.Context(), Options{Root: os.Getpid()}); err != nil {
		t.Errorf("with a descriptor of such a file: %v", err)
	}
	for _, d := range dirs[1:] {
		unix.Close(d)
	}
	self := &task{pid: os.Getpid(), found: map[string]*details{}, files: map[file]bool{}}
	if err := self.readMappings(t.Context(), &family{o: &Options{}}); err != nil || self.found[kindGhost] == nil {
		t.Errorf("found %v, %v; want a deleted file", self.found, err)
	}
}

func TestTimeIsBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Look(ctx, Options{Root: os.Getpid()}); err == nil {
		t.Error("a look that was called off succeeds")
	}
	if _, err := Look(t.Context(), Options{Root: os.Getpid(), Limit: time.Nanosecond}); err == nil ||
		!strings.Contains(err.Error(), "not done in") {
		t.Errorf("a look without time: %v", err)
	}
}

// A kind that the dump takes care of stops nothing.
func TestHandled(t *testing.T) {
	a, b, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	ring := &task{pid: 1, found: map[string]*details{}}
	ring.add(kindURing, "descriptor %d", 7)
	busy := func(int) error { return errors.New("it is busy") }
	idle := func(int) error { return nil }
	for _, tc := range []struct {
		handle map[string]func(int) error
		want   Effect
		says   string
	}{{nil, Stops, "descriptor 7"}, {map[string]func(int) error{kindURing: idle}, Note, "descriptor 7"},
		{map[string]func(int) error{kindURing: busy}, Stops, "it is busy"}} {
		if f := ring.finding(kindURing, ring.found[kindURing], &Options{Handle: tc.handle}); f.Effect != tc.want ||
			!strings.Contains(f.What, tc.says) {
			t.Errorf("%+v, want %s and %q", f, tc.want, tc.says)
		}
	}
}

func FuzzText(f *testing.F) {
	for _, path := range []string{"stat", "maps", "mountinfo", "environ", "fdinfo/0", "status", "net/tcp", "../locks"} {
		text, err := os.ReadFile(filepath.Join("/proc/self", path))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(context0 + managed))
	f.Add([]byte("1 (a) b) R 1 2 3 4"))
	f.Add([]byte("1: POSIX  ADVISORY  WRITE 7 00:1c:5 0 9"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := string(text)
		if st, ok := parseStat(text); ok && st.state == 0 {
			t.Errorf("a state of nothing: %+v", st)
		}
		var g gpuTraces
		eachMapping(strings.NewReader(s), func(m mapping) error {
			if m.end <= m.start {
				t.Errorf("%+v", m)
			}
			g.mapped(m)
			return nil
		})
		eachMount(strings.NewReader(s), func(mount) {})
		eachField(strings.NewReader(s), func(string, string) {})
		eachTCP(strings.NewReader(s), func(c tcpSocket) {
			if c.waiting < 0 || c.state < 0 {
				t.Errorf("%+v", c)
			}
			address(c.remote)
		})
		lockedFiles(strings.NewReader(s))
		ncclConf(strings.NewReader(s))
		if env, err := environment(strings.NewReader(s), ncclVariables...); err != nil ||
			len(env) > len(ncclVariables) {
			t.Errorf("%v, %v", env, err)
		}
		inode(s, "socket")
		ipcMaker(s)
		if n := parseSize(s); n < 0 {
			t.Errorf("size %d", n)
		}
		all := map[uint64]unixSocket{}
		parseUnixSockets(text, all)
	})
}

func TestKernelThreadsAreKnown(t *testing.T) {
	for text, kernel := range map[string]bool{
		"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0":   true,
		"9 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0": true,
		"7 (sleep) S 1 7 7 0 -1 4194304 96 0 0":     false,
		"7 (a) b) S 1 7 7 0":                        false,
	} {
		if s, ok := parseStat([]byte(text)); !ok || s.kernel != kernel {
			t.Errorf("%q: a thread of the kernel: %v, parsed %v", text, s.kernel, ok)
		}
	}
}
