package lazy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/restore/uffd"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// TestHungCRIU: the tasks are ended when criu has given SIGCHLD up and waits for them. It does not wait for ever.
func TestHungCRIU(t *testing.T) {
	c := dump(t, lazytarget.Options{MB: 16, Threads: 2, Seed: 9, Quiet: true})
	for name, end := range map[string]func(*guarded){
		"the restore is given up": func(g *guarded) {
			g.cmd.Process.Kill() // nobody succeeds
		},
		"the guardian is killed": func(g *guarded) {
			for _, pid := range g.role("guardian") {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.Reset()
			work := t.TempDir()
			g := c.guardAs(t, "doomed", work, 4<<20)
			// A task that is stopped now does not come any further, and criu does.
			script := filepath.Join(work, "script")
			text := `#!/bin/sh
[ "$CRTOOLS_SCRIPT_ACTION" = post-restore ] || exit 0
kill -STOP "$CRTOOLS_INIT_PID"
`
			must(t, os.WriteFile(script, []byte(text), 0o700))
			log := filepath.Join(work, "restore.log")
			criu := exec.Command(criuProgram(t), "restore", "-W", work, "-D", c.dir, "--lazy-pages", "-d",
				"--action-script", script, "-o", log, "-v4")
			must(t, criu.Start())
			ended := make(chan error, 1)
			go func() { ended <- criu.Wait() }()
			must(t, poll(time.Minute, func() bool { return deaf(criu.Process.Pid) }))
			end(g)
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				criu.Process.Kill()
				<-ended
				text, _ := os.ReadFile(log)
				t.Errorf("criu hangs\n%s\n%s", text[max(0, len(text)-2000):], g.text())
			}
			must(t, c.Ended(time.Minute))
			must(t, g.gone(time.Minute))
			<-g.end
			if !strings.Contains(g.text(), "killed criu") {
				t.Errorf("the log does not tell: %s", g.text())
			}
			if _, err := os.Lstat(filepath.Join(work, uffd.SocketName)); err == nil {
				t.Error("the socket is still there")
			}
		})
	}
}

// deaf reports whether a process catches no signal, and waits on a futex.
func deaf(pid int) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	at, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
	return strings.Contains(string(status), "SigCgt:\t0000000000000000\n") && strings.Contains(string(at), "futex")
}
