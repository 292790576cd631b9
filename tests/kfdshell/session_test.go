package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// session takes the commands that the simulator's manual tells people to type.
func session(t *testing.T, root string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "kfd/kfdsim/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "opens a shell")
	_, rest, ok2 := strings.Cut(rest, "\n\n    ")
	if !ok || !ok2 {
		t.Fatal("the manual has no session behind \"opens a shell\"")
	}
	var lines []string
	for _, line := range strings.Split("    "+rest, "\n") {
		if cmd, ok := strings.CutPrefix(line, "    "); ok {
			lines = append(lines, cmd)
		} else if line != "" {
			break
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// TestSessionOfTheManual types the manual's session into the shell of make kfdsim-shell. Between its lines it waits, as
// a person would, for the application to come up.
func TestSessionOfTheManual(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, bin := t.TempDir(), t.TempDir()
	if err := build(root, bin); err != nil {
		t.Fatal(err)
	}
	criu := os.Getenv("CRIU")
	if criu == "" {
		criu = filepath.Join(root, "build/criu/criu")
	}
	if err := os.Symlink(criu, filepath.Join(bin, "criu")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(criu); err != nil {
		t.Fatalf("no criu: %v; run make criu", err)
	}

	typed := strings.ReplaceAll(session(t, root), "/tmp/", dir+"/")
	for _, needed := range []string{"setsid", "criu dump", "criu restore", "kfdsim get", "kill"} {
		if !strings.Contains(typed, needed) {
			t.Fatalf("the session does not %s:\n%s", needed, typed)
		}
	}
	// rounds N waits until both processes have verified all their buffer objects N times since it was last asked.
	script := fmt.Sprintf(`
app=%s/app
try() {
	i=0
	until eval "$1"; do
		i=$((i+1))
		[ $i -lt 1200 ] || { echo "gave up: $1"; cat $app/status.* $app/log; exit 1; }
		sleep 0.1
	done
}
round() { sed -n 's/.*round \([0-9]*\) ok.*/\1/p' $app/status.$1 2>/dev/null || true; }
more() {
	! grep -q FAIL $app/status.* &&
		[ "0$(round 0)" -gt "$((0$r0 + 1))" ] && [ "0$(round 1)" -gt "$((0$r1 + 1))" ]
}
rounds() { r0=$(round 0) r1=$(round 1); try more; }
gone() { kfdsim get "$KFDSIM_DIR" /state | grep -Eq '"processes": *(null|\[\])'; }
trap 'kill -KILL -$(cat $app/pid) 2>/dev/null || true' EXIT
set -e
`, dir)
	for _, line := range strings.SplitAfter(typed, "\n") {
		if strings.Contains(line, "criu dump") {
			script += "rounds\n"
		}
		script += line
		switch {
		case strings.Contains(line, "setsid"):
			script += "try '[ -s $app/pid ]'\nrounds\n"
		case strings.HasPrefix(line, "wait"):
			// Whatever is left of the dumped group holds its number.
			script += "try '! kill -0 -$(cat $app/pid) 2>/dev/null'\n"
		case strings.Contains(line, "criu restore"):
			script += "rounds\n"
		case strings.Contains(line, "kill"):
			script += "try gone\necho the session is over\n"
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kfdsim"), "shell")
	cmd.Env = append(os.Environ(), "SHELL=/bin/sh", "KFDSIM_PLUGIN="+filepath.Join(bin, "plugin"),
		"PATH="+bin+":"+os.Getenv("PATH"))
	cmd.Stdin = strings.NewReader(script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		killApp(dir)
		return cmd.Process.Signal(syscall.SIGTERM)
	}
	err = cmd.Run()
	killApp(dir)
	if text := out.String(); err != nil || !strings.Contains(text, "the session is over") {
		logs := ""
		for _, name := range []string{"img/dump.log", "img/restore.log"} {
			if b, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				logs += string(b[max(0, len(b)-3000):])
			}
		}
		t.Fatalf("%v\n%s\n%s", err, text[max(0, len(text)-3000):], logs)
	}
	for _, want := range []string{"/dev/kfd", "tick", "\"hash\""} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the session did not show %q", want)
		}
	}
}

// killApp ends the application, which has a process group of its own, where it is still there.
func killApp(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "app/pid"))
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return
	}
	if exe, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil &&
		strings.TrimSpace(string(exe)) == "gpuapp" {
		syscall.Kill(-pid, syscall.SIGKILL)
	}
}
