// Package docs holds README and manual to the program: each command in them exists with its options, and the README's
// are run, in their order, on a real process with a real criu.
package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

const (
	root  = "../.."
	limit = time.Minute
)

var (
	program cli.Program
	target  string
	path    string // PATH with program and criu
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "docs-")
	if err == nil {
		defer os.RemoveAll(dir)
		program, err = cli.Build(dir)
	}
	if err == nil {
		target, err = lazytarget.Build(dir)
	}
	var criu string
	if err == nil {
		criu, err = cli.FindCRIU()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for fd := 3; fd < 64; fd++ { // what the test was started with is not for the processes to be dumped
		syscall.CloseOnExec(fd)
	}
	syscall.Setsid() // the leader of the test's session may be outside of its pid namespace
	path = filepath.Dir(string(program)) + ":" + filepath.Dir(criu) + ":" + os.Getenv("PATH")
	os.Setenv("GPUCR_FS_CRIU", criu)
	os.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	return m.Run()
}

// commands gives the lines of a page that are indented as commands are, without their comments.
func commands(t *testing.T, page string) (lines []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		text, ok := strings.CutPrefix(line, "    ")
		if !ok || strings.HasPrefix(text, " ") {
			continue
		}
		text, _, _ = strings.Cut(text, " #")
		if text = strings.TrimSpace(text); text != "" {
			lines = append(lines, text)
		}
	}
	return lines
}

var (
	call = regexp.MustCompile(`(?:^|[\s|])gpucr-fs ((?:--?\S+ )*)([a-z][a-z-]*)((?: [^|&;]*)?)`)
	flag = regexp.MustCompile(`(?:^|\s)(--?[a-zA-Z][a-zA-Z-]*)`)
)

// TestCommandsExist looks up each gpucr-fs command of README and manual, and its options, in the program's own help.
func TestCommandsExist(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil || len(pages) < 5 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	helps := map[string]string{}
	help := func(words ...string) string {
		key := strings.Join(words, " ")
		if helps[key] == "" {
			out, err := exec.Command(string(program), append(words, "--help")...).CombinedOutput()
			helps[key] = string(out)
			if err != nil {
				helps[key] = "none"
			}
		}
		return helps[key]
	}
	seen := 0
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		name, _ := filepath.Rel(root, page)
		for _, line := range commands(t, name) {
			for _, m := range call.FindAllStringSubmatch(line, -1) {
				if m[0] == "gpucr-fs root 1" {
					continue // the first line of a bucket's root objects
				}
				words := []string{m[2]}
				text := help(words...)
				if text == "none" || !strings.Contains(text, "gpucr-fs "+m[2]) {
					t.Errorf("%s: %q: there is no command %s", name, line, m[2])
					continue
				}
				own, _, _ := strings.Cut(m[3]+" ", " -- ")
				if next := strings.Fields(own); strings.Contains(text, "Available Commands:") && len(next) > 0 {
					text = help(append(words, next[0])...)
				}
				for _, f := range flag.FindAllStringSubmatch(m[1]+own, -1) {
					if !regexp.MustCompile(`(?m)^ +(-\w, )?`+f[1]+`\b`).MatchString(text) && !passed[m[2]][f[1]] {
						t.Errorf("%s: %q: %s has no option %s", name, line, m[2], f[1])
					}
				}
				seen++
			}
		}
	}
	if seen < 60 {
		t.Errorf("only %d commands were found", seen)
	}
}

// passed are options of criu's that commands hand on, and that their help tells in words.
var passed = map[string]map[string]bool{
	"dump":       {"-t": true},
	"lazy-pages": {"-d": true, "-D": true, "-W": true},
}

// readme is where the README's commands are run.
type readme struct {
	t       *testing.T
	dir     string
	process *lazytarget.Target
}

// adapt puts the test's folders and process in the place of those of the README.
func (r *readme) adapt(line string) string {
	line = strings.ReplaceAll(line, "/images", filepath.Join(r.dir, "images"))
	return strings.ReplaceAll(line, "4711", strconv.Itoa(r.process.PID))
}

func (r *readme) command(line string) (*exec.Cmd, *bytes.Buffer) {
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	r.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+r.adapt(line))
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "PATH="+path)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

func (r *readme) run(line string) string {
	r.t.Helper()
	cmd, out := r.command(line)
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out.String()
}

// goesOn waits until the process has done more than before, and ends it.
func (r *readme) goesOn(pids ...int) {
	r.t.Helper()
	if err := r.process.Beats(2, limit); err != nil {
		r.t.Fatal(err)
	}
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, pid := range pids {
		for end := time.Now().Add(limit); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				r.t.Fatalf("process %d does not end", pid)
			}
		}
	}
}

var restored = regexp.MustCompile(`as process (\d+)`)

// TestReadme runs the README's commands for a store in their order, its first two lines last.
func TestReadme(t *testing.T) {
	r := &readme{t: t, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(r.dir, "images"), 0o755); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	var err error
	if r.process, err = lazytarget.Start(target, work, lazytarget.Options{MB: 16, Threads: 1, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	go r.process.Reap(stop)
	t.Cleanup(func() {
		r.process.Kill()
		close(stop)
	})
	lines := commands(t, "README.md")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	original := r.process.PID
	ran := 0
	for _, line := range append(lines, lines[0], lines[1])[2:] {
		switch {
		case strings.HasPrefix(line, "make "):
			continue // what CI and the packages' test run
		case line == "criu restore -D /images":
			cmd, out := r.command(line)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			r.goesOn(original)
			if err := cmd.Wait(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
			r.run("gpucr-fs umount /images")
		case strings.HasPrefix(line, "gpucr-fs serve "):
			cmd, out := r.command(line)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			cmd.Process.Signal(syscall.SIGINT)
			if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "http://127.0.0.1:9100/") {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		case strings.HasPrefix(line, "gpucr-fs restore "):
			if ran > 0 && !strings.Contains(line, "--") {
				r.goesOn(original) // the one that was dumped
			}
			var pids []int
			for _, m := range restored.FindAllStringSubmatch(r.run(line), -1) {
				pid, _ := strconv.Atoi(m[1])
				pids = append(pids, pid)
			}
			if !strings.Contains(line, "--") {
				pids = []int{original}
			}
			if want := 1 + 3*strings.Count(line, "--copies 4"); len(pids) != want {
				t.Fatalf("%s: %d processes", line, len(pids))
			}
			r.goesOn(pids...)
		default:
			r.run(line)
		}
		ran++
	}
	if ran < 15 {
		t.Errorf("only %d commands were run", ran)
	}
}
