package preflight

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

func ipText(ip []byte) string { return net.IP(ip).String() }

// judge turns what was read into findings.
func (a *family) judge(ctx context.Context) (Report, error) {
	r := Report{Root: a.o.Root, Processes: len(a.tasks), Findings: []Finding{}}
	if err := a.judgeSockets(); err != nil {
		return r, err
	}
	if err := a.judgeCUDA(ctx, &r); err != nil {
		return r, err
	}
	a.judgeTree()
	if err := a.judgeSleepers(ctx); err != nil {
		return r, err
	}
	for _, t := range a.tasks {
		for kind, d := range t.found {
			r.Findings = append(r.Findings, t.finding(kind, d, a.o))
		}
	}
	r.sort()
	return r, nil
}

func (t *task) finding(kind string, d *details, o *Options) Finding {
	rule := rules[kind]
	f := Finding{Kind: kind, PID: t.pid, Name: t.name, Effect: rule.effect, What: rule.what, Do: rule.do}
	if strings.Contains(f.What, "%s") {
		f.What = fmt.Sprintf(f.What, d)
	} else if strings.Contains(f.Do, "%s") {
		f.Do = fmt.Sprintf(f.Do, d)
	}
	if handle := o.Handle[kind]; handle != nil {
		if err := handle(t.pid); err != nil {
			f.What += fmt.Sprintf("; dump cannot take care of it: %v", err)
		} else {
			f.Effect, f.Do = Note, "dump takes care of it"
		}
	}
	return f
}

// judgeTree looks at what processes are to each other.
func (a *family) judgeTree() {
	root := a.tasks[0]
	masters := map[int]bool{}
	for _, t := range a.tasks {
		for _, m := range t.masters {
			masters[m] = true
		}
	}
	for _, t := range a.tasks {
		switch {
		case (t.state == 'Z' || t.state == 'X') && t.threads > 1:
			t.add(kindHalfDead, "")
		case (t.state == 'Z' || t.state == 'X') && t == root:
			t.add(kindDead, "")
		}
		if t.tracer != 0 {
			t.add(kindTraced, "process %d%s", t.tracer, nameOf(t.tracer))
		}
		if t.nssid == "0" && t.found[kindNested] == nil {
			t.add(kindLeader, "")
		}
		if a.o.has("shell-job", "orphan-pts-master", "external") || root.session != root.pid {
			continue // the latter is told of the root
		}
		told := map[int]bool{}
		for _, s := range t.slaves {
			if !masters[s] && !told[s] {
				told[s] = true
				t.add(kindTerminal, "/dev/pts/%d", s)
			}
		}
	}
	own := a.root["pid"] != a.self["pid"]
	if root.session != root.pid && root.nssid != "0" && !a.o.has("shell-job") {
		root.add(kindSession, "%d%s", root.session, nameOf(root.session))
	}
	if n := len(root.nspids); own && n > 0 && root.nspids[n-1] != "1" && !a.o.has("external") {
		root.add(kindInit, "%s", initOf(a.root["pid"]))
	}
	if a.root["mnt"] != a.self["mnt"] && !a.o.has("external", "ext-mount-map", "enable-fs") {
		for _, m := range a.foreign {
			root.add(kindFS, "%s", m)
		}
	}
}

// nameOf gives " (NAME)" of a process that is there.
func nameOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return " (" + strings.TrimSpace(string(text)) + ")"
}

// initOf finds the first process of a pid namespace, "PID" when it is out of sight.
func initOf(ns string) string {
	dir, err := os.ReadDir("/proc")
	if err != nil {
		return "PID"
	}
	for _, d := range dir {
		if pid, err := strconv.Atoi(d.Name()); err == nil {
			if to, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && to == ns {
				return d.Name() // pids rise, and a namespace's first process is its oldest as a rule
			}
		}
	}
	return "PID"
}

// Threads wait for a disk in uninterruptible sleep all the time, for moments. A thread is reported if it sleeps through
// sleepLooks looks, sleepPause apart.
const (
	sleepLooks = 5
	sleepPause = 20 * time.Millisecond
)

func (a *family) judgeSleepers(ctx context.Context) error {
	for range sleepLooks {
		waiting := false
		for _, t := range a.tasks {
			waiting = waiting || len(t.asleep) > 0
		}
		if !waiting {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(sleepPause):
		}
		for _, t := range a.tasks {
			before := t.asleep
			t.asleep = nil
			for _, s := range before {
				if err := t.readThread(s.tid); err != nil && !gone(err) {
					return err
				}
			}
			// A thread that ran between two looks was awake.
			t.asleep = slices.DeleteFunc(t.asleep, func(s sleeper) bool { return !slices.Contains(before, s) })
		}
	}
	for _, t := range a.tasks {
		for _, s := range t.asleep {
			t.add(kindAsleep, "thread %d", s.tid)
		}
	}
	return nil
}
