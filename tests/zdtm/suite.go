package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// partLimit bounds one run of the driver; a test that hangs is ended by the driver's own limits long before.
const partLimit = time.Hour

// checkSuite tells what is missing before anything runs.
func checkSuite(ctx context.Context, src string) error {
	for file, how := range map[string]string{
		"test/zdtm.py":               "it is not CRIU's source tree",
		"test/zdtm/static/env00":     "build the tests with: make -C " + src + "/test/zdtm",
		"lib/pycriu/rpc_pb2.py":      "build CRIU with: make -C " + src,
		"lib/pycriu/images/pb.py":    "build CRIU with: make -C " + src,
		"test/zdtm/lib/libzdtmtst.a": "build the tests with: make -C " + src + "/test/zdtm",
	} {
		if _, err := os.Stat(filepath.Join(src, file)); err != nil {
			return fmt.Errorf("%w; %s", err, how)
		}
	}
	if out, err := exec.CommandContext(ctx, "python3", "-c",
		"import yaml, google.protobuf").CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("python3: %s; the suite's driver needs Debian's python3-yaml and python3-protobuf",
			lines[len(lines)-1])
	}
	return nil
}

// place is where zdtm.py finds its criu, and where its output goes.
type place struct{ dir, log string }

// tally is what became of tests, by name.
type tally struct{ results map[string]result }

type result struct {
	passed bool
	took   time.Duration
}

func newTally() *tally { return &tally{map[string]result{}} }

func (t *tally) passed() (n int) {
	for _, r := range t.results {
		if r.passed {
			n++
		}
	}
	return n
}

func (t *tally) String() string {
	n := t.passed()
	return fmt.Sprintf("%d passed, %d failed", n, len(t.results)-n)
}

// worse gives the tests that fail here and pass in other, in order.
func (t *tally) worse(other *tally) (names []string) {
	for name, r := range t.results {
		if !r.passed && other.results[name].passed {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// total gives how long the tests took that pass here and in other.
func (t *tally) total(other *tally) (d time.Duration) {
	for name, r := range t.results {
		if r.passed && other.results[name].passed {
			d += r.took
		}
	}
	return d
}

// What zdtm.py prints.
var (
	startLine = regexp.MustCompile(`^=== Run \d+/\d+ \S+ (\S+)$`)
	passLine  = regexp.MustCompile(`^=+ Test (\S+) PASS =+$`)
	listLine  = regexp.MustCompile(`^ \* (\S+)\(\w+\)$`)
)

// follow reads the output of zdtm.py and copies it to log. A test ends where the next one begins.
func (t *tally) follow(out io.Reader, log io.Writer) error {
	var name string
	var began time.Time
	end := func() {
		if name != "" {
			r := t.results[name]
			r.took = time.Since(began)
			t.results[name] = r
		}
	}
	s := bufio.NewScanner(out)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		line := s.Text()
		if _, err := fmt.Fprintln(log, line); err != nil {
			return err
		}
		if m := startLine.FindStringSubmatch(line); m != nil {
			end()
			name, began = m[1], time.Now()
			t.results[name] = result{}
		} else if m := passLine.FindStringSubmatch(line); m != nil {
			r := t.results[m[1]]
			r.passed = true
			t.results[m[1]] = r
		} else if m := listLine.FindStringSubmatch(line); m != nil {
			r := t.results[m[1]]
			r.passed = false
			t.results[m[1]] = r
		}
	}
	end()
	return s.Err()
}

// zdtm runs the driver once.
func (r *runner) zdtm(ctx context.Context, m mode, p place, t *tally, which []string) error {
	ctx, cancel := context.WithTimeout(ctx, partLimit)
	defer cancel()
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"zdtm.py", "run", "-f", m.flavor, "--keep-going", "--keep-img", "never", "--ignore-taint",
		"--criu-bin", filepath.Join(p.dir, wrapperName), "--pycriu-search-path", "../lib"}
	args = append(append(args, m.args...), which...)
	if r.exclude != "" {
		args = append(args, "-x", r.exclude)
	}
	cmd := exec.CommandContext(ctx, "python3", args...)
	cmd.Dir = filepath.Join(r.src, "test")
	cmd.Env = append(os.Environ(), "PYTHONUNBUFFERED=1")
	if r.asRoot {
		// Variables of make's own command line go before those of its environment, and reach the tests that it starts.
		cmd.Env = append(cmd.Env, "MAKEFLAGS= -- ZDTM_UID=0 ZDTM_GID=0 ZDTM_GROUPS=0")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		// A process that a test has left may keep the pipe open.
		out.SetReadDeadline(time.Now().Add(5 * time.Second))
		ended <- err
	}()
	err = t.follow(out, log)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	werr := <-ended
	var exit *exec.ExitError
	if errors.As(werr, &exit) && exit.ExitCode() == 1 && len(t.results) > 0 {
		werr = nil // tests failed: the results say so
	}
	if err = errors.Join(err, werr, context.Cause(ctx)); err != nil {
		return fmt.Errorf("zdtm.py: %w; see %s", err, p.log)
	}
	return nil
}
