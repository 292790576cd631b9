package cuda

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/cudasim"
)

// takePID starts a process with a number of its choice; clone3 takes a list of pids.
const takePID = `
import ctypes, os, struct, sys, time
pid = (ctypes.c_int * 1)(int(sys.argv[1]))
args = struct.pack("11Q", 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(pid), 1, 0)
got = ctypes.CDLL(None, use_errno=True).syscall(435, args, len(args))
if got == 0:
    print("there", flush=True)
    time.sleep(3600)
if got < 0:
    sys.exit("clone3: errno %d" % ctypes.get_errno())
os.waitpid(got, 0)
`

// Processes with GPU memory are restored in a pid namespace of their own, while somebody has a pid of theirs: the
// driver is asked for them by the pids that they have out here, and they answer as before, also after a dump from
// there.
func TestOwnPIDs(t *testing.T) {
	r := start(t, cudasim.Options{Processes: 2, GPUs: 2})
	inside := r.app.PID
	r.ok("dump", r.store, "one", "-t", r.pid())
	r.gone()
	cmd := exec.Command("python3", "-c", takePID, r.pid())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() {
		syscall.Kill(inside, syscall.SIGKILL)
		cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	r.fails([]string{"restore", r.store, "one"}, fmt.Sprint(inside), "--own-pids")
	for _, name := range []string{"one", "two"} {
		var res struct{ Timeline struct{ PID, Inside int } }
		must(t, json.Unmarshal([]byte(r.ok("restore", r.store, name, "--own-pids", "--wait", "--json")), &res))
		if r.app.PID = res.Timeline.PID; r.app.PID == inside || res.Timeline.Inside != inside {
			t.Fatalf("process %d is restored as %d, %d inside", inside, r.app.PID, res.Timeline.Inside)
		}
		r.states(cuda.Running)
		r.verify()
		if name == "one" {
			r.ok("dump", r.store, "two", "-t", r.pid())
			r.gone()
		}
	}
	must(t, r.app.Kill())
	for end := time.Now().Add(timeout); ; time.Sleep(10 * time.Millisecond) {
		text, _ := exec.Command("ps", "-eo", "comm=,stat=,args=").Output()
		if !strings.Contains(string(text), dir) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("processes are left:\n%s", text)
		}
	}
}
