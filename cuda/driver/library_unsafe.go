package driver

import (
	"bytes"
	"fmt"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Arguments as in cuda.h 13.0; each is 64 bytes, and what is reserved must be zero.
type (
	lockArgs struct {
		timeoutMS, _ uint32
		_            [7]uint64
	}
	noArgs      struct{ _ [8]uint64 }
	restoreArgs struct {
		pairs uintptr
		count uint32
		_     [44]byte
		_     uint64
	}
)

// gpuPairsSince is the first CUDA version whose restore takes pairs: 13.0, with driver 580.
const gpuPairsSince = 13000

// Library is the loaded driver.
type Library struct {
	// Path is what was loaded.
	Path string

	init          func(flags uint32) int32
	driverVersion func(*int32) int32
	errorName     func(code int32, name **byte) int32
	errorString   func(code int32, text **byte) int32
	deviceCount   func(*int32) int32
	deviceGet     func(dev *int32, ordinal int32) int32
	deviceUUID    func(uuid *[16]byte, dev int32) int32
	deviceName    func(name *byte, size int32, dev int32) int32
	deviceMem     func(bytes *uint64, dev int32) int32
	lock          func(pid int32, args *lockArgs) int32
	checkpoint    func(pid int32, args *noArgs) int32
	restore       func(pid int32, args *restoreArgs) int32
	unlock        func(pid int32, args *noArgs) int32
	getState      func(pid int32, state *int32) int32
	getThread     func(pid int32, tid *int32) int32
}

// Open loads the library at path, or wherever it is when path is empty.
func Open(path string) (*Library, error) {
	tries := []string{path}
	if path == "" {
		tries[0] = "libcuda.so.1"
		for _, d := range folders {
			tries = append(tries, filepath.Join(d, "libcuda.so.1"))
		}
	}
	var handle uintptr
	var first error
	l := &Library{}
	for _, t := range tries {
		h, err := purego.Dlopen(t, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err == nil {
			handle, l.Path = h, t
			break
		}
		if first == nil {
			first = err
		}
	}
	if handle == 0 {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, first)
	}
	for _, f := range []struct {
		into  any
		names []string
	}{
		{&l.init, []string{"cuInit"}},
		{&l.driverVersion, []string{"cuDriverGetVersion"}},
		{&l.errorName, []string{"cuGetErrorName"}},
		{&l.errorString, []string{"cuGetErrorString"}},
		{&l.deviceCount, []string{"cuDeviceGetCount"}},
		{&l.deviceGet, []string{"cuDeviceGet"}},
		{&l.deviceUUID, []string{"cuDeviceGetUuid_v2", "cuDeviceGetUuid"}},
		{&l.deviceName, []string{"cuDeviceGetName"}},
		{&l.deviceMem, []string{"cuDeviceTotalMem_v2", "cuDeviceTotalMem"}},
		{&l.lock, []string{"cuCheckpointProcessLock"}},
		{&l.checkpoint, []string{"cuCheckpointProcessCheckpoint"}},
		{&l.restore, []string{"cuCheckpointProcessRestore"}},
		{&l.unlock, []string{"cuCheckpointProcessUnlock"}},
		{&l.getState, []string{"cuCheckpointProcessGetState"}},
		{&l.getThread, []string{"cuCheckpointProcessGetRestoreThreadId"}},
	} {
		var sym uintptr
		for _, n := range f.names {
			if s, err := purego.Dlsym(handle, n); err == nil {
				sym = s
				break
			}
		}
		if sym == 0 {
			return nil, fmt.Errorf("%w: %s lacks %s", ErrTooOld, l.Path, f.names[0])
		}
		purego.RegisterFunc(f.into, sym)
	}
	return l, nil
}

// result turns a CUresult into an error.
func (l *Library) result(code int32) error {
	if code == 0 {
		return nil
	}
	r := &Result{Code: int(code)}
	var name, text *byte
	if l.errorName(code, &name) == 0 {
		r.Name = cString(name)
	}
	if l.errorString(code, &text) == 0 {
		r.Text = cString(text)
	}
	return r
}

// cString copies a string of the driver's.
func cString(p *byte) string {
	if p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// Init readies the driver. No other method but Version works before.
func (l *Library) Init() error { return l.result(l.init(0)) }

// Version gives the CUDA version the driver serves: 13000 for 13.0.
func (l *Library) Version() (int, error) {
	var v int32
	err := l.result(l.driverVersion(&v))
	return int(v), err
}

// Devices lists the GPUs the driver shows this process.
func (l *Library) Devices() ([]Device, error) {
	var n int32
	if err := l.result(l.deviceCount(&n)); err != nil {
		return nil, err
	}
	list := make([]Device, n)
	for i := range list {
		var dev int32
		var name [256]byte
		if err := l.result(l.deviceGet(&dev, int32(i))); err != nil {
			return nil, err
		}
		if err := l.result(l.deviceUUID(&list[i].UUID, dev)); err != nil {
			return nil, err
		}
		if err := l.result(l.deviceName(&name[0], int32(len(name)), dev)); err != nil {
			return nil, err
		}
		if err := l.result(l.deviceMem(&list[i].Memory, dev)); err != nil {
			return nil, err
		}
		text, _, _ := bytes.Cut(name[:], []byte{0})
		list[i].Name = string(text)
	}
	return list, nil
}

// Lock waits for the process's submitted work, up to timeout when that is not 0, and holds its further calls back.
func (l *Library) Lock(pid int, timeout time.Duration) error {
	if timeout <= 0 {
		return l.result(l.lock(int32(pid), nil))
	}
	return l.result(l.lock(int32(pid), &lockArgs{timeoutMS: uint32(max(timeout.Milliseconds(), 1))}))
}

// Checkpoint moves a locked process's VRAM into its memory and gives its GPUs free.
func (l *Library) Checkpoint(pid int) error { return l.result(l.checkpoint(int32(pid), nil)) }

// Restore takes GPUs for a checkpointed process and moves its VRAM back: onto the GPUs where it was, or the ones pairs
// name.
func (l *Library) Restore(pid int, pairs []Pair) error {
	if len(pairs) == 0 {
		return l.result(l.restore(int32(pid), nil))
	}
	if v, err := l.Version(); err == nil && v < gpuPairsSince {
		return &Result{Code: 801, Name: "CUDA_ERROR_NOT_SUPPORTED",
			Text: "restoring on other GPUs needs driver 580 or newer"}
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&pairs[0])
	args := &restoreArgs{pairs: uintptr(unsafe.Pointer(&pairs[0])), count: uint32(len(pairs))}
	return l.result(l.restore(int32(pid), args))
}

// Unlock lets a locked process call the driver again.
func (l *Library) Unlock(pid int) error { return l.result(l.unlock(int32(pid), nil)) }

// State gives the process's CUprocessState.
func (l *Library) State(pid int) (int, error) {
	var s int32
	err := l.result(l.getState(int32(pid), &s))
	return int(s), err
}

// RestoreThread gives the id of the thread in the process that serves the driver's requests.
func (l *Library) RestoreThread(pid int) (int, error) {
	var t int32
	err := l.result(l.getThread(int32(pid), &t))
	return int(t), err
}
