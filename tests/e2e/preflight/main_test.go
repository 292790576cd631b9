package preflight

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/preflight"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/tests/cli"
)

const timeout = time.Minute

var (
	subject string
	criu    string
	program cli.Program
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "preflight-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		subject = filepath.Join(dir, "subject")
		var out []byte
		if out, err = exec.Command("cc", "-std=gnu11", "-O1", "-Wall",
			"-Wextra", "-Werror", "-pthread", "-o", subject, "src/subject.c").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s; apt-get install gcc libc6-dev", err, out)
		}
	}
	if err == nil {
		criu, err = cli.FindCRIU()
	}
	if err == nil {
		program, err = cli.Build(dir)
	}
	cli.CloseInheritedOnExec()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// The leader of the session that the test was started in may be outside of its pid namespace. Then no process of
	// that session can be dumped, whatever the options. Who started the test from a shell is in a session that can.
	syscall.Setsid()
	os.Setenv("GPUCR_FS_CRIU", criu)
	os.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	return m.Run()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a program in a session of its own, with input and output that are in nobody's way, until it says it is
// ready.
func start(t *testing.T, prepare func(*exec.Cmd), name string, args ...string) int {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	must(t, err)
	defer out.Close()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if prepare != nil {
		prepare(cmd)
	}
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		kill(cmd.Process.Pid)
		<-ended
	})
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(out.Name())
		must(t, err)
		if bytes.Contains(text, []byte("ready\n")) {
			return cmd.Process.Pid
		}
		select {
		case <-ended:
			t.Fatalf("%s %v ended: %s", name, args, text)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("%s %v is not ready: %s", name, args, text)
		}
	}
}

// kill ends a process and all below it.
func kill(root int) {
	kids := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		if text, err := os.ReadFile(path); err == nil {
			f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
			parent, _ := strconv.Atoi(f[1])
			kids[parent] = append(kids[parent], pid)
		}
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		all = append(all, kids[all[i]]...)
	}
	for _, pid := range all {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

func look(t *testing.T, pid int, options ...string) preflight.Report {
	t.Helper()
	args, err := restore.ParseArgs(options)
	must(t, err)
	r, err := preflight.Look(t.Context(), preflight.Options{Root: pid, CRIU: &args})
	must(t, err)
	return r
}

// dump lets criu dump a process and leave it running. It gives criu's complaints.
func dump(t *testing.T, pid int, options ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	dir := t.TempDir()
	cmd := exec.CommandContext(
		ctx,
		criu,
		append(
			[]string{"dump", "-D", dir, "-t", strconv.Itoa(pid), "--leave-running", "-o", "log", "--timeout", "5"},
			options...)...)
	said, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	var errs []string
	if f, oerr := os.Open(filepath.Join(dir, "log")); oerr == nil {
		defer f.Close()
		for lines := bufio.NewScanner(io.LimitReader(f, 1<<20)); lines.Scan(); {
			if strings.Contains(lines.Text(), "Error") {
				errs = append(errs, lines.Text())
			}
		}
	}
	return fmt.Errorf("%w: %s%s", err, said, strings.Join(errs, "; "))
}
