package uffd

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CRIU hears by SIGCHLD of a task that ends before its time, says so in its log, and undoes what it has made. Just
// before its tasks take back their credentials it gives that signal up, and waits for them on a futex: for ever, if one
// is killed then. Whoever waits for CRIU, or for the ends of pipes that it holds, waits with it. So whoever ends tasks
// ends such a CRIU, too. After its end mark CRIU waits for no task like that.

const (
	// hungTime is how long a CRIU whose tasks were ended waits on a futex before it is ended. One that still gets
	// SIGCHLD leaves the futex at once.
	hungTime = 2 * time.Second
	// undoTime is how long it may do something else, such as undo what it has mounted, or wait for a script.
	undoTime = 20 * time.Second
	// hungLook is how often it is looked at.
	hungLook = 20 * time.Millisecond
)

// killedCRIU is what a log says of one that was ended.
const killedCRIU = "killed criu, which waited for tasks that were ended"

// outlast waits until a CRIU whose tasks were ended has ended, and ends it where it hangs: then it reports true. It
// returns earlier when over says so; nil never does.
func outlast(criu *process, over func() bool) (killed bool) {
	if criu.pid == os.Getpid() {
		return false // this is no CRIU
	}
	begin := time.Now()
	for hung := begin; ; {
		if over != nil && over() {
			return false
		}
		if gone, err := waitReadable(hungLook, criu.pidfd); err != nil || gone[0] {
			return false
		}
		now := time.Now()
		if !onFutex(criu.pid) {
			hung = now
		}
		if now.Sub(hung) >= hungTime || now.Sub(begin) >= undoTime {
			return unix.PidfdSendSignal(criu.pidfd, unix.SIGKILL, nil, 0) == nil
		}
	}
}

// onFutex reports whether the first thread of a process is known to wait on a futex.
func onFutex(pid int) bool {
	at, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
	return err == nil && strings.Contains(string(at), "futex")
}
