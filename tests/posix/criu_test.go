package posix

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/workload"
)

// criu finds the program that `make criu` provides.
func criu(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("CRIU"); p != "" {
		return p
	}
	out, err := exec.Command("go", "env", "GOMOD").Output()
	must(t, err)
	p := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "build", "criu", "criu")
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("no CRIU: %v; run make criu, or set CRIU", err)
	}
	return p
}

// runCRIU runs criu and fails the test with its log when it fails.
func runCRIU(t *testing.T, log string, args ...string) {
	t.Helper()
	if out, err := tryCRIU(t, args...); err != nil {
		text, _ := os.ReadFile(log)
		lines := bytes.Split(text, []byte("\n"))
		t.Fatalf("criu %v: %v: %s\n%s", args, err, out, bytes.Join(lines[max(0, len(lines)-30):], []byte("\n")))
	}
}

func tryCRIU(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, criu(t), args...)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	f, err := os.CreateTemp(t.TempDir(), "out")
	must(t, err)
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f // a file: restored processes keep it open, which would hold a pipe
	err = cmd.Run()
	b, _ := os.ReadFile(f.Name())
	out.Write(b)
	if ctx.Err() != nil {
		t.Fatalf("criu %v did not end within two minutes", args)
	}
	return out.Bytes(), err
}

func startWorkload(t *testing.T, mb int) *workload.Process {
	t.Helper()
	dir := t.TempDir()
	bin, err := workload.Build(dir)
	must(t, err)
	p, err := workload.Start(bin, dir, "--mem", strconv.Itoa(mb), "--threads", "2")
	must(t, err)
	t.Cleanup(func() { p.Kill() })
	return p
}

// The two lines that must always work, and what is behind them: a dump into the store, the server gone and come back, a
// restore from the root.
func TestCRIUDumpsAndRestores(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	p := startWorkload(t, 96)
	first, second := m.draft("first"), m.draft("second")
	runCRIU(t, filepath.Join(first, "dump.log"), "dump", "-t", strconv.Itoa(p.PID), "-D", first, "-o", "dump.log",
		"-v4", "--leave-running")
	must(t, p.Verified(time.Minute))
	runCRIU(t, filepath.Join(second, "dump.log"), "dump", "-t", strconv.Itoa(p.PID), "-D", second, "-o", "dump.log",
		"-v4")
	must(t, p.Gone(time.Minute))
	for _, dir := range []string{first, second} {
		wantErrno(t, os.WriteFile(filepath.Join(dir, "late.img"), nil, 0o644), 30, "the dump is not sealed: write")
		if log, err := os.ReadFile(filepath.Join(dir, "dump.log")); err != nil ||
			!bytes.Contains(log, []byte("Dumping finished successfully")) {
			t.Errorf("the log of the dump cannot be read: %v", err)
		}
	}
	m.stop()
	m = start(t, serveArgs{Store: m.store})
	runCRIU(t, filepath.Join(m.dir, "restore.log"), "restore", "-D", m.dir, "-d", "-o", "restore.log", "-v4")
	must(t, p.Verified(time.Minute))
	must(t, p.Kill())
	runCRIU(t, "", "restore", "-D", filepath.Join(m.dir, ".checkpoints", "first"), "-d")
	must(t, p.Verified(time.Minute))
	must(t, p.Kill())
	if st := m.stats(); st.ReadErrors != 0 || st.OpenHandles != 0 {
		t.Errorf("after the restores: %+v", st)
	}
}

// With a new checkpoint as the root, -D is the mount itself at dump as well.
func TestCRIUDumpsIntoTheRoot(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t), New: "A"})
	p := startWorkload(t, 32)
	runCRIU(t, filepath.Join(m.dir, "dump.log"), "dump", "-t", strconv.Itoa(p.PID), "-D", m.dir, "-o", "dump.log",
		"-v4")
	must(t, p.Gone(time.Minute))
	runCRIU(t, filepath.Join(m.dir, "restore.log"), "restore", "-D", m.dir, "-d", "-o", "restore.log", "-v4")
	must(t, p.Verified(time.Minute))
	must(t, p.Kill())
}

// Unreadable pages end a restore; they neither stall it nor reach the process.
func TestCRIURestoreOfDamageFails(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	p := startWorkload(t, 64)
	dir := m.draft("A")
	runCRIU(t, filepath.Join(dir, "dump.log"), "dump", "-t", strconv.Itoa(p.PID), "-D", dir, "-o", "dump.log", "-v4")
	must(t, p.Gone(time.Minute))
	must(t, p.Blank())
	m.stop()
	packs, err := filepath.Glob(filepath.Join(m.store, "packs", "*.pack"))
	must(t, err)
	for _, pack := range packs {
		b, err := os.ReadFile(pack)
		must(t, err)
		for at := len(b) / 3; at < len(b)*2/3; at += 1 << 20 {
			b[at] ^= 0x55
		}
		must(t, os.WriteFile(pack, b, 0o600))
	}
	m = start(t, serveArgs{Store: m.store})
	begun := time.Now()
	out, err := tryCRIU(t, "restore", "-D", m.dir, "-d", "-o", "restore.log", "-v4")
	if err == nil {
		t.Errorf("a restore from damaged pages succeeded: %s", out)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("the restore took %v to fail", took)
	}
	if _, err := p.Status(); err == nil {
		t.Error("the process ran on damaged memory")
	}
	if st := m.stats(); st.ReadErrors == 0 {
		t.Error("no read of the damage failed")
	}
	must(t, p.Gone(time.Minute)) // criu does not wait for the processes it gives up
}
