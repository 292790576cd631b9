package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// Processes that CRIU kills after a dump have paused queues to their end: what their
// GPUs did after the checkpoint would be done twice. All others go on.
func TestPausedToTheEnd(t *testing.T) {
	const procs = 2
	for _, tc := range []struct {
		name   string
		args   []string
		script string // at the end of the dump
		fails  bool
		lives  bool
	}{
		{name: "killed"},
		{name: "left running", args: []string{"--leave-running"}, lives: true},
		{name: "left stopped", args: []string{"--leave-stopped"}, lives: true},
		{name: "kept alive by a script that fails", script: "exit 3", fails: true, lives: true},
		{name: "kept alive, and the helper killed", script: "kill -9 HELPERS; exit 3", fails: true, lives: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}, {}}})
			if tc.script != "" {
				script := filepath.Join(b.Dir, "script")
				helpers := fmt.Sprintf(
					`$(for p in /proc/[0-9]*; do [ "$(readlink $p/exe)" = %s ] && basename $p; done)`,
					b.program,
				)
				text := "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ] || exit 0\n" +
					strings.ReplaceAll(tc.script, "HELPERS", helpers) + "\n"
				if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
				tc.args = append(tc.args, "--action-script", script)
			}
			app := b.StartApp(procs, "--interval", "1", "--bos", "8", "--max-bo", "65536")
			err := b.criu(append([]string{"dump", "-t", strconv.Itoa(app.PID)}, tc.args...)...)
			if (err != nil) != tc.fails {
				t.Fatalf("dump: %v", err)
			}
			b.noHelpers()
			unpaused := b.Sim.State().CRIUOps["UNPAUSE"]
			if !tc.lives {
				app.WaitGone()
				if unpaused = b.Sim.State().CRIUOps["UNPAUSE"]; unpaused != 0 {
					t.Errorf("%d processes were unpaused before they were killed", unpaused)
				}
				b.restore()
				app.WaitRounds(1)
				app.Kill()
				return
			}
			if unpaused != procs {
				t.Errorf("%d processes were unpaused, not %d", unpaused, procs)
			}
			syscall.Kill(-app.PID, syscall.SIGCONT)
			app.WaitRounds(1)
			app.Kill()
		})
	}
}
