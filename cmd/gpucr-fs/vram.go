package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/syslog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index/scratch"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/plugin/helper"
)

// What the plugin's helper finds in criu's environment: when processes may run, and a socket for the one who waits for
// their queues.
const (
	vramVar       = "GPUCR_VRAM"
	vramLazy      = "lazy"
	vramGate      = "gate"
	vramEventsVar = "GPUCR_VRAM_EVENTS"
)

// parseVRAM tells whether processes run before their VRAM is there.
func parseVRAM(mode string) (lazy bool, err error) {
	switch mode {
	case vramLazy:
		return true, nil
	case "", vramGate:
		return false, nil
	}
	return false, fmt.Errorf("%q is neither %s nor %s", mode, vramLazy, vramGate)
}

func setVRAM(mode string) error {
	if _, err := parseVRAM(mode); err != nil || mode == "" {
		return usage(fmt.Errorf("--vram=%s is neither %s nor %s", mode, vramLazy, vramGate), "")
	}
	return os.Setenv(vramVar, mode)
}

// teller reports events to the restore command that listens at a socket, if there is one. What was ended it also
// reports to the system's log.
func teller(socket string) func(helper.Event) {
	var mu sync.Mutex
	var c net.Conn
	if socket != "" {
		if dialed, err := net.Dial("unix", socket); err == nil {
			c = dialed // open until this process ends: the restore command waits for that
		}
	}
	return func(e helper.Event) {
		if e.Why != "" {
			report(e)
		}
		mu.Lock()
		defer mu.Unlock()
		if c == nil {
			return
		}
		if line, err := json.Marshal(e); err == nil {
			c.SetWriteDeadline(time.Now().Add(time.Second))
			c.Write(append(line, '\n')) // a command that has ended need not know
		}
	}
}

// report tells the system's log of a process that was ended.
func report(e helper.Event) {
	if log, err := syslog.New(syslog.LOG_ERR|syslog.LOG_DAEMON, "gpucr-fs"); err == nil {
		log.Err(fmt.Sprintf("process %d ended: the rest of its GPU memory did not come: %s", e.PID, e.Why))
		log.Close()
	}
}

// vramEvents hears from the helpers of one restore when queues run.
type vramEvents struct {
	l     *net.UnixListener
	dir   *scratch.Dir
	conns sync.WaitGroup // goroutines that accept and that read

	mu      sync.Mutex
	changed *sync.Cond // of what follows
	heard   []helper.Event
	at      []time.Time
	open    map[net.Conn]bool
	asked   bool // helpers that connected before the question are in open
	waited  bool // and so all were heard
	closed  bool
}

// listenVRAM makes a socket for the helpers.
func listenVRAM() (*vramEvents, error) {
	dir, err := scratch.Make(os.TempDir(), "gpucr-fs-events-")
	if err != nil {
		return nil, err
	}
	v := &vramEvents{dir: dir, open: map[net.Conn]bool{}}
	v.changed = sync.NewCond(&v.mu)
	if v.l, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: v.path()}); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	v.conns.Go(v.accept)
	return v, nil
}

func (v *vramEvents) path() string { return filepath.Join(v.dir.Path(), "events") }

// env is for criu.
func (v *vramEvents) env() []string { return []string{vramEventsVar + "=" + v.path()} }

func (v *vramEvents) accept() {
	for {
		c, err := wire.Accept(v.l, func(error) {}) // the helpers wait
		if err != nil {
			return
		}
		v.mu.Lock()
		v.open[c] = true
		if v.closed {
			c.Close()
		}
		v.mu.Unlock()
		v.conns.Go(func() { v.hear(c) })
	}
}

// hear takes a helper's events until it ends.
func (v *vramEvents) hear(c net.Conn) {
	defer func() {
		c.Close()
		v.mu.Lock()
		delete(v.open, c)
		v.changed.Broadcast()
		v.mu.Unlock()
	}()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		var e helper.Event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		v.mu.Lock()
		if e.PID == 0 {
			v.asked = true
		} else {
			v.heard, v.at = append(v.heard, e), append(v.at, time.Now())
		}
		v.mu.Unlock()
	}
}

// wait waits until the helpers that have connected have ended.
func (v *vramEvents) wait(ctx context.Context) error {
	v.mu.Lock()
	v.asked = false
	v.mu.Unlock()
	// The helpers connected before: this connection comes after theirs.
	c, err := net.Dial("unix", v.path())
	if err == nil {
		_, err = c.Write([]byte("{\"pid\":0}\n"))
		c.Close()
	}
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		v.mu.Lock()
		v.changed.Broadcast()
		v.mu.Unlock()
	})()
	v.mu.Lock()
	defer v.mu.Unlock()
	for !v.asked || len(v.open) > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		v.changed.Wait()
	}
	v.waited = true
	return nil
}

// begin forgets what helpers of a former attempt have said.
func (v *vramEvents) begin() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heard, v.at, v.waited = nil, nil, false
}

// lastHeard is how long the helper of a criu that has failed is listened to. It ends with criu.
const lastHeard = 20 * time.Second

// cause gives the reason of a restore that failed with err. When the helper has ended a process, criu sees only that it
// is gone, and says so.
func (v *vramEvents) cause(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, lastHeard)
	defer cancel()
	v.wait(ctx) // what was heard until then counts
	v.mu.Lock()
	defer v.mu.Unlock()
	if lost := v.lost(); lost != nil {
		return lost
	}
	return err
}

// marks gives when each process's queues ran, and when all did; nothing before wait has returned.
func (v *vramEvents) marks() (marks []restore.Mark) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.waited {
		return nil
	}
	for i, e := range v.heard {
		if e.Why != "" {
			continue
		}
		if len(v.heard) > 1 {
			marks = append(
				marks,
				restore.Mark{Name: fmt.Sprintf("%s, process %d", restore.MarkGPUReady, e.PID), At: v.at[i]},
			)
		}
	}
	if n := len(v.heard); n > 0 && v.lost() == nil {
		marks = append(marks, restore.Mark{Name: restore.MarkGPUReady, At: v.at[n-1]})
	}
	return marks
}

// lost gives the processes that were ended. Preconditions: v.mu is held, or wait has returned nil.
func (v *vramEvents) lost() error {
	var why []string
	for _, e := range v.heard {
		if e.Why != "" {
			why = append(why, fmt.Sprintf("process %d: %s", e.PID, e.Why))
		}
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("processes could not be given their GPU memory and were ended: %s", strings.Join(why, "; "))
}

func (v *vramEvents) close() error {
	err := v.l.Close()
	v.mu.Lock()
	v.closed = true
	for c := range v.open {
		c.Close()
	}
	v.mu.Unlock()
	v.conns.Wait()
	return errors.Join(err, v.dir.Close())
}
