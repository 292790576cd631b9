package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// questions are the seeds asked before a dump and after a restore.
var questions = []int{3, 14, 159}

// app is the application, or what it has become after a restore: it is known by its pid and sockets.
type app struct {
	name      string
	pid       int
	socket    string
	processes int
	answers   [][]string // of each process to each question
	starting  bool
	service   *service // where it is asked over HTTP
	known     []int    // pids of its processes
	piped     bool     // it is asked over its pipes
}

// shape is how large an application is: options of app.py, or MiB of cudasim's.
type shape struct {
	options []string
	mib     int
}

var (
	whole = shape{mib: 64}
	small = shape{[]string{"--layers", "6"}, 16}
)

// start starts an application and waits until all its processes answer.
func (b *bench) start(ctx context.Context, name string, processes int, size shape) (*app, error) {
	a := &app{name: name, socket: filepath.Join(b.o.work, name+".sock"), processes: processes, starting: true}
	return a, b.launch(ctx, a, b.program(a.socket, processes, size))
}

// startPiped starts an application of one process that is asked over pipes of its own, so that copies of it can be.
func (b *bench) startPiped(ctx context.Context, name string, size shape) (*app, error) {
	a := &app{name: name, socket: name, processes: 1, starting: true, piped: true}
	return a, b.launch(ctx, a, b.program("pipes", 1, size))
}

// program gives the command of an application.
func (b *bench) program(socket string, processes int, size shape) *exec.Cmd {
	if b.o.app != "torch" {
		return exec.Command(b.o.app, socket, strconv.Itoa(size.mib), "1", strconv.Itoa(processes))
	}
	args := []string{filepath.Join(b.o.pack, "app.py"), "--socket", socket, "--device", b.o.device, "--processes",
		strconv.Itoa(processes)}
	return exec.Command(b.o.python, append(append(args, size.options...), strings.Fields(b.o.model)...)...)
}

// fork lets the first process fork a child that answers without the GPU, and learns its answers.
func (a *app) fork(ctx context.Context) error {
	line, err := a.say(ctx, 0, fmt.Sprintf("worker %d", a.processes))
	if err == nil && !strings.HasPrefix(line, "ok ") {
		err = fmt.Errorf("%s answered %q", a.name, line)
	}
	if err != nil {
		return err
	}
	a.processes++
	return a.learn(ctx)
}

// launch starts an application's command and learns its answers.
func (b *bench) launch(ctx context.Context, a *app, cmd *exec.Cmd) error {
	log, err := os.Create(filepath.Join(b.o.work, "logs", "app-"+filepath.Base(a.socket)+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(log, "%s: %s\n", a.name, strings.Join(cmd.Args, " "))
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.Env = append(cmd.Env, "PYTHONUNBUFFERED=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	a.pid = cmd.Process.Pid
	go cmd.Wait()
	b.mu.Lock()
	b.apps = append(b.apps, a)
	b.mu.Unlock()
	if err := a.learn(ctx); err != nil {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w; its log: %s", err, text)
	}
	return nil
}

// learn asks all questions and keeps the answers; a second round must give the same.
func (a *app) learn(ctx context.Context) error {
	for i := len(a.answers); i < a.processes; i++ {
		var list []string
		for _, q := range questions {
			s, err := a.ask(ctx, i, q)
			if err != nil {
				return err
			}
			list = append(list, s)
		}
		a.answers = append(a.answers, list)
	}
	a.starting = false
	return a.verify(ctx)
}

// verify asks all questions and compares the answers, bit by bit, with those of the beginning.
func (a *app) verify(ctx context.Context) error {
	for i := range a.processes {
		for k, q := range questions {
			s, err := a.ask(ctx, i, q)
			if err != nil {
				return err
			}
			if s != a.answers[i][k] {
				return fmt.Errorf("WRONG ANSWER of %s, process %d, to %d: %s, and %s before", a.name, i, q, s,
					a.answers[i][k])
			}
		}
	}
	return nil
}

// ask asks until it is answered or ctx ends.
func (a *app) ask(ctx context.Context, i, question int) (string, error) {
	line, err := a.say(ctx, i, fmt.Sprintf("ask %d", question))
	if err != nil {
		return "", err
	}
	f := strings.Fields(line)
	if len(f) != 3 || f[0] != "answer" {
		return "", fmt.Errorf("%s answered %q", a.name, line)
	}
	return f[1], nil
}

func (a *app) say(ctx context.Context, i int, line string) (string, error) {
	path := a.socket
	if i > 0 {
		path += "." + strconv.Itoa(i)
	}
	put := func() (string, error) { return say(ctx, path, line) }
	if a.piped {
		put = func() (string, error) { return sayPiped(ctx, a.pid, line) }
	}
	if a.service != nil {
		put = func() (string, error) { return a.service.say(ctx, line) }
	}
	for {
		answer, err := put()
		if errors.Is(err, errConnectionLost) {
			return "", err
		}
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("%s, process %d of %d, does not answer: %w", a.name, i, a.pid, err)
		}
		if a.starting && errors.Is(syscall.Kill(a.pid, 0), syscall.ESRCH) {
			return "", fmt.Errorf("%s, process %d, has ended: %w", a.name, a.pid, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func say(ctx context.Context, path, line string) (string, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return "", err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })()
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(answer), err
}

// kill ends all processes of the application and waits until their pids are free.
func (a *app) kill(ctx context.Context) error {
	syscall.Kill(-a.pid, syscall.SIGKILL)
	return a.gone(ctx)
}

func (a *app) gone(ctx context.Context) error {
	for {
		for {
			if pid, err := syscall.Wait4(-a.pid, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		if errors.Is(syscall.Kill(-a.pid, 0), syscall.ESRCH) && errors.Is(syscall.Kill(a.pid, 0), syscall.ESRCH) {
			return nil
		}
		select {
		case <-ctx.Done():
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.pid))
			return fmt.Errorf("process %d of %s does not go away: %s", a.pid, a.name, stat)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
