package restore

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// onTerminal runs a shell on a terminal of its own, passes on what it says, types Ctrl-C when it has said "type", again
// each second, for the job may not be in front yet, and hangs up when it ends, or after a minute of silence.
const onTerminal = `
import os, pty, select, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", sys.argv[1]] + sys.argv[2:])
said = b""
quiet = 0
while quiet < 60:
    if not select.select([fd], [], [], 1)[0]:
        quiet += 1
        if b"type" in said:
            os.write(fd, b"\x03")
        continue
    quiet = 0
    try:
        b = os.read(fd, 4096)
    except OSError:
        break
    if not b:
        break
    before, said = said, said + b
    sys.stdout.buffer.write(b)
    sys.stdout.flush()
    if b"type" in said and b"type" not in before:
        os.write(fd, b"\x03")
os.close(fd)
os.waitpid(pid, 0)
`

// job is a shell's job: it says when it runs on, and what Ctrl-C does.
const job = `
import os, signal, sys, time
def interrupted(*_):
    print("interrupted with", os.getpid(), flush=True)
    open(sys.argv[1] + ".done", "w").close()
    os._exit(5)
signal.signal(signal.SIGINT, interrupted)
with open(sys.argv[1], "w") as f:
    f.write(str(os.getpid()))
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.01)
print("ty" + "pe", flush=True)
time.sleep(600)
`

// A shell's job is restored in a pid namespace of its own on the terminal of the one who restores it: it writes there,
// and Ctrl-C reaches it.
func TestOwnPIDsTerminal(t *testing.T) {
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "pid")
	script := `python3 -c "$1" "$2" &
		while ! [ -s "$2" ]; do sleep 0.01; done
		"$3" dump "$4" job -t $! -- --shell-job
		wait`
	sh := []string{"-c", onTerminal, script, "sh", job, file, string(program), b.store}
	if out, err := exec.Command("python3", sh...).CombinedOutput(); err != nil || !b.has("job") {
		t.Fatalf("%v: %s", err, out)
	}
	pid, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file+".go", nil, 0o600))
	// The shell stays until it is over: its terminal would hang up.
	script = `trap : INT; "$1" restore --own-pids "$2" job -- --shell-job; i=0
while ! [ -e "$3" ] && [ $((i += 1)) -lt 3000 ]; do sleep 0.01; done`
	out, err := exec.Command("python3", "-c", onTerminal,
		script, "sh", string(program), b.store, file+".done").CombinedOutput()
	if want := "with " + string(pid); err != nil || !strings.Contains(string(out), want) {
		t.Errorf("the job does not say %q: %v\n%s", want, err, out)
	}
	must(t, quietly(b))
	if _, err := strconv.Atoi(string(pid)); err != nil {
		t.Error(err)
	}
}
