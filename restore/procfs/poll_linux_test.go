package procfs

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Signals, as Go's runtime sends to itself, do not make it unknown whether a process has ended.
func TestReadableThroughSignals(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	self, end := unix.Gettid(), make(chan struct{})
	stop := sync.OnceFunc(func() { close(end) })
	defer stop()
	sent := make(chan int, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-end:
				sent <- n
				return
			default:
				unix.Tgkill(unix.Getpid(), self, unix.SIGURG)
			}
		}
	}()
	for late := time.Now().Add(300 * time.Millisecond); time.Now().Before(late); {
		if events, err := Readable(fd); events != 0 || err != nil {
			t.Fatalf("of a process that runs: %#x, %v", events, err)
		}
	}
	stop()
	if n := <-sent; n < 100 {
		t.Errorf("only %d signals were sent", n)
	}
}
