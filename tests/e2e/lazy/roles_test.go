package lazy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// playRole runs this program as one of the processes of a guarded restore.
//
//	guardian
//	provider IMAGES WORK RATE     starts a guardian
//	doomed IMAGES WORK RATE       the same, but nobody can succeed it
//	successor IMAGES RATE         started by a guardian
//	unwilling                     a successor that fails
func playRole(role string, args []string) bool {
	var err error
	switch role {
	case "guardian":
		err = uffd.GuardianMain()
	case "provider":
		err = provide(args[0], args[1], args[2], "/proc/self/exe", "successor", args[0], args[2])
	case "doomed":
		err = provide(args[0], args[1], args[2], "/proc/self/exe", "unwilling")
	case "successor":
		err = succeed(args[0], args[1])
	case "unwilling":
		err = errors.New("takes nothing over")
	default:
		return false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
	return true
}

func roleLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func provide(images, work, rate string, successor ...string) error {
	c, err := criuimg.Load(os.DirFS(images))
	if err != nil {
		return err
	}
	g, err := uffd.StartGuardian(uffd.GuardianOptions{
		Dir: work, Plan: uffd.NewPlan(c), Logger: roleLog(),
		Command:   []string{"/proc/self/exe", "guardian"},
		Successor: successor,
	})
	if err != nil {
		return err
	}
	return serve(g, images, rate)
}

func succeed(images, rate string) error {
	g, err := uffd.Takeover(roleLog())
	if err != nil {
		return err
	}
	return serve(g, images, rate)
}

func serve(g *uffd.Client, images, rate string) error {
	defer g.Close()
	var files []prefetch.File
	for _, name := range g.Plan().Files {
		f, err := prefetch.OpenFile(filepath.Join(images, name))
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	r, err := strconv.ParseInt(rate, 10, 64)
	if err != nil {
		return err
	}
	q, err := prefetch.New(prefetch.Options{Files: files, Sink: g, Buffers: g, RunBytes: g.RunBytes(),
		Memory: g.Memory(), Rate: r, Logger: roleLog()})
	if err != nil {
		return err
	}
	defer q.Close()
	fmt.Println("serving")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return g.Serve(ctx, q)
}

// guarded is a provider process with its guardian.
type guarded struct {
	cmd *exec.Cmd
	log string // what all of its processes wrote
	end chan error
}

// guard starts a provider and a guardian for the images.
func (c *checkpoint) guard(t testing.TB, work string, rate int64) *guarded {
	t.Helper()
	return c.guardAs(t, "provider", work, rate)
}

func (c *checkpoint) guardAs(t testing.TB, role, work string, rate int64) *guarded {
	t.Helper()
	g := &guarded{log: filepath.Join(work, "server.log"), end: make(chan error, 1)}
	log, err := os.Create(g.log)
	must(t, err)
	defer log.Close()
	g.cmd = exec.Command("/proc/self/exe", role, c.dir, work, strconv.FormatInt(rate, 10))
	g.cmd.Stderr = log
	out, err := g.cmd.StdoutPipe()
	must(t, err)
	must(t, g.cmd.Start())
	overdue := time.AfterFunc(5*time.Minute, func() { g.cmd.Process.Kill() }) // whoever waits for it gets an error then
	t.Cleanup(func() { overdue.Stop() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		g.cmd.Wait()
		t.Fatalf("the provider did not start: %v\n%s", err, g.text())
	}
	if strings.TrimSpace(line) != "serving" {
		t.Fatalf("the provider says %q", line)
	}
	go func() { g.end <- g.cmd.Wait() }()
	t.Cleanup(func() {
		g.cmd.Process.Kill()
		must(t, g.gone(time.Minute))
		if t.Failed() {
			t.Log(g.text())
		}
	})
	return g
}

func (g *guarded) text() string {
	b, _ := os.ReadFile(g.log)
	return string(b)
}

// processes returns the pids of all processes that write to the log: provider,
// guardian, successors.
func (g *guarded) processes() (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/2")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == g.log {
			pid, _ := strconv.Atoi(strings.Split(l, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// role returns the processes that play a role.
func (g *guarded) role(name string) (pids []int) {
	for _, pid := range g.processes() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if args := strings.Split(string(b), "\x00"); len(args) > 1 && args[1] == name {
			pids = append(pids, pid)
		}
	}
	return pids
}

// gone waits until all of the processes have ended by themselves.
func (g *guarded) gone(timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(2 * time.Millisecond) {
		pids := g.processes()
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(end) {
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			return fmt.Errorf("processes %v of the server are still there after %v\n%s", pids, timeout, g.text())
		}
	}
}
