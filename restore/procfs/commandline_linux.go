package procfs

import (
	"os"
	"strconv"
	"unsafe"
)

// CommandLine returns the memory of this process's arguments, in bytes up to the end of the last one: what is written
// there, ps shows. It is nil when it is not where it should be.
func CommandLine() []byte {
	// Fields 48 and 49 are arg_start and arg_end.
	f := Stat("/proc/self/stat")
	if len(f) < 47 || len(os.Args) == 0 {
		return nil
	}
	start, err := strconv.ParseUint(f[45], 10, 64)
	end, err2 := strconv.ParseUint(f[46], 10, 64)
	at := unsafe.StringData(os.Args[0])
	if err != nil || err2 != nil || uint64(uintptr(unsafe.Pointer(at))) != start || end <= start {
		return nil
	}
	return unsafe.Slice(at, end-start)
}
