package preflight

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Variables of NCCL that choose its transports within a machine.
var ncclVariables = []string{
	"NCCL_P2P_DISABLE",
	"NCCL_P2P_LEVEL",
	"NCCL_CUMEM_ENABLE",
	"NCCL_CUMEM_HOST_ENABLE",
	"NCCL_CONF_FILE",
}

// judgeSeveralGPUs looks for what the driver cannot bring back of processes that use several GPUs. nccl says that NCCL
// connects several. XLA comes first, whatever NCCL's variables say: with JAX 0.11 on two GPUs (driver 580) the driver's
// restore of its process ended with CUDA_ERROR_INVALID_VALUE.
func (t *task) judgeSeveralGPUs(nccl bool) error {
	several := len(t.gpu.contexts) > 1
	switch {
	case several && t.gpu.xla:
		t.add(kindXLA, "%s", minors(t.gpu.contexts))
		return nil
	case nccl && t.gpu.nccl:
		return t.judgeNCCL()
	case several:
		return t.judgePools()
	}
	return nil
}

// judgeNCCL tells from a process's environment whether NCCL's transports can be brought back. Seen with driver 580 and
// NCCL 2.28, two processes and two GPUs: with peer-to-peer off, and memory shared otherwise than by descriptors of
// cuMem, they can; otherwise the driver's restore fails.
func (t *task) judgeNCCL() error {
	env, err := t.environment(ncclVariables...)
	if err != nil {
		return err
	}
	conf := env["NCCL_CONF_FILE"]
	if conf == "" {
		conf = "/etc/nccl.conf"
	}
	if f, err := openBelow(t.path("root"), conf); err == nil {
		for name, value := range ncclConf(f) {
			if _, ok := env[name]; !ok { // the environment wins
				env[name] = value
			}
		}
		f.Close()
	}
	if lost := ncclLost(env); lost != "" {
		t.add(kindNCCL, "%s", lost)
	}
	return nil
}

// openBelow opens a file as a process with that root directory would. Links, and the name itself, are the process's own
// to choose: they lead to nothing outside, and nobody waits for what is no regular file.
func openBelow(root, name string) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("no regular file")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// environment gives variables that the process was started with.
func (t *task) environment(want ...string) (map[string]string, error) {
	f, err := os.Open(t.path("environ"))
	if err != nil {
		return nil, err
	}
	env, err := environment(f, want...)
	return env, errors.Join(err, f.Close())
}

// Variables by which frameworks are told to allocate from the driver's pools.
var poolVariables = []string{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TF_GPU_ALLOCATOR"}

// judgePools looks at a process with contexts on several GPUs. Seen with driver 580 on two H200s: copies by
// cudaDeviceEnablePeerAccess and cuMem (PyTorch's allocators) went on after the driver's restore; with cudaMallocAsync
// all its steps succeeded, and the next copy ended with "unspecified launch failure".
func (t *task) judgePools() error {
	env, err := t.environment(poolVariables...)
	if err != nil {
		return err
	}
	for _, name := range poolVariables {
		if v := strings.ToLower(strings.ReplaceAll(env[name], "_", "")); strings.Contains(v, "mallocasync") {
			t.add(kindPools, "%s=%s, %s", name, env[name], minors(t.gpu.contexts))
			return nil
		}
	}
	t.add(kindPeers, "%s", minors(t.gpu.contexts))
	return nil
}

// maxConf bounds what is read of a configuration file.
const maxConf = 64 << 10

// ncclConf reads NCCL's configuration file: NAME=VALUE, a line each.
func ncclConf(r io.Reader) map[string]string {
	conf := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(r, maxConf))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok && !strings.HasPrefix(name, "#") {
			conf[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return conf
}

// ncclLost says which of NCCL's transports cannot be brought back, "" when all can.
func ncclLost(env map[string]string) string {
	off := env["NCCL_P2P_DISABLE"] == "1" || strings.EqualFold(env["NCCL_P2P_LEVEL"], "LOC") ||
		env["NCCL_P2P_LEVEL"] == "0"
	switch {
	case !off:
		return "peer-to-peer access is on"
	case env["NCCL_CUMEM_ENABLE"] != "0" && env["NCCL_CUMEM_HOST_ENABLE"] != "0":
		return "memory is shared by cuMem"
	}
	return ""
}
