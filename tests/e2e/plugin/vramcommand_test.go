package plugin

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/restore"
)

// restore --vram=lazy tells when processes ran and when their queues did, and fails with
// --wait when a process could not be given its VRAM.
func TestRestoreOnDemand(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{DMARate: 100e6}}})
	store := filepath.Join(b.Dir, "store")
	b.gpucr("init", store)
	b.daemonsEnd(store)
	app := b.StartApp(2, "--interval", "1", "--bos", "12", "--max-bo", "262144", "--big-bo", strconv.Itoa(16<<20))
	run := func(args ...string) error {
		t.Helper()
		return b.start(b.Command("env", append([]string{"LD_PRELOAD=" + b.Shim, b.program}, args...)...)).wait()
	}
	if err := run("dump", "--criu", b.CRIU, "-t", strconv.Itoa(app.PID), store, "gpu"); err != nil {
		t.Fatal(err)
	}
	app.WaitGone()
	if err := run("restore", "--vram=soon", "--criu", b.CRIU, store, "gpu"); err == nil ||
		!strings.Contains(err.Error(), "neither lazy nor gate") {
		t.Errorf("a mode that does not exist: %v", err)
	}
	file := filepath.Join(b.Dir, "timeline")
	b.rate(2 * heldBack) // the fill takes some seconds
	if err := run("restore", "--criu", b.CRIU, "--vram=lazy", "--wait", "--timeline", file, store, "gpu"); err != nil {
		t.Fatal(err)
	}
	b.rate(100e6)
	if n, _ := b.missing(0); n != 0 {
		t.Errorf("%d bytes are missing after --wait", n)
	}
	b.ready() // the driver begins queues after its answer
	var line restore.Timeline
	text, err := os.ReadFile(file + ".json")
	if err = errors.Join(err, json.Unmarshal(text, &line)); err != nil {
		t.Fatal(err)
	}
	resume, ok1 := line.At(restore.MarkResume)
	ready, ok2 := line.At(restore.MarkGPUReady)
	if !ok1 || !ok2 || resume >= ready {
		t.Errorf("the timeline: %s", text)
	}
	each := 0
	for _, m := range line.Marks {
		if strings.HasPrefix(m.Name, restore.MarkGPUReady+", process ") &&
			m.Ms <= float64(ready.Microseconds())/1000+1 {
			each++
		}
	}
	if each != 2 {
		t.Errorf("queues of %d processes in the timeline: %s", each, text)
	}
	app.WaitRounds(1)
	b.noGPUErrors()
	app.Kill()
	app.WaitGone()
	b.noHelpers()
	// RESUME is the last thing that may fail. Its process is killed while criu holds it, which sees that it is gone and
	// no more, or when criu is done; or it fails in criu itself, where all VRAM is there first.
	const held = `#!/bin/sh
if [ "$CRTOOLS_SCRIPT_ACTION" = post-restore ] && [ -n "$FILL_SECONDS" ]; then sleep "$FILL_SECONDS"; exit; fi
[ "$CRTOOLS_SCRIPT_ACTION" = pre-resume ] || exit 0
for i in $(seq 600); do
	dead=yes
	for pid in $(cat /proc/$CRTOOLS_INIT_PID/task/*/children); do
		grep -q '^State:.[^ZX]' /proc/$pid/status && dead=no
	done
	[ $dead = yes ] && exit 0
	sleep 0.05
done
exit 1
`
	script := filepath.Join(b.Dir, "script")
	if err := os.WriteFile(script, []byte(held), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		after time.Duration
		fill  string // seconds that criu waits for fills
		args  []string
	}{
		{"criu holds the process", 0, "", []string{"--", "--action-script", script}},
		{"criu is done", time.Second, "", nil},
		{"VRAM is there first", 0, "2", []string{"--", "--action-script", script}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: "AMDKFD_IOC_CRIU_OP RESUME", Errno: 22, Delay: tc.after}
			if err := b.Sim.Inject(f); err != nil {
				t.Fatal(err)
			}
			t.Setenv("FILL_SECONDS", tc.fill)
			args := []string{"restore", "--criu", b.CRIU, "--vram=lazy", "--wait", store, "gpu"}
			err := run(append(args, tc.args...)...)
			b.Sim.ClearFaults()
			if err == nil || !strings.Contains(err.Error(), "could not be given their GPU memory and were ended") ||
				!strings.Contains(err.Error(), "RESUME of process") {
				t.Errorf("processes that cannot be resumed: %v", err)
			}
			b.noHelpers()
			app.WaitGone()
		})
	}
}
