package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/preflight"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/pidns"
)

// lookAt examines a tree. n, nil where NVIDIA GPUs are left alone, asks the driver, when a process looks like using
// CUDA. parkRings: idle io_uring rings are no obstacle.
func lookAt(ctx context.Context, root int, args *restore.Args, n *nvidia, parkRings bool) (preflight.Report, error) {
	o := preflight.Options{Root: root, CRIU: args, NoCUDA: n == nil, AMD: amdgpuPlugins() != "",
		Handle: map[string]func(int) error{}}
	if parkRings {
		o.Handle[preflight.IOURing] = func(pid int) error { return idle(root, pid) }
	}
	switch m, ok, err := pidns.Find(root); {
	case err != nil:
		return preflight.Report{}, err
	case ok:
		o.Beside = m.Init
	}
	if n != nil {
		if !n.flags.keep {
			o.Handle[preflight.CUDAInherited] = func(pid int) error { return inherited(root, pid) }
		}
		if n.flags.present() {
			o.States = n.state
		} else {
			o.Driver = cuda.ErrNoDriver
		}
	}
	return preflight.Look(ctx, o)
}

// state asks the driver where a process stands.
func (n *nvidia) state(ctx context.Context, pid int) (preflight.State, error) {
	c, err := n.start()
	if err != nil {
		return preflight.State{}, err
	}
	s, err := c.State(ctx, pid)
	if cuda.CodeOf(err) == cuda.CodeNotInitialized {
		return preflight.State{}, nil
	}
	return preflight.State{Name: s.String(), Failed: s == cuda.Failed, Known: err == nil}, err
}

// preflight refuses a dump that cannot succeed, or that would lose processes.
func (d *dumping) preflight(ctx context.Context) error {
	r, err := lookAt(ctx, d.pid, &d.args, d.gpu, d.parkRings)
	if err != nil && (!d.force || ctx.Err() != nil) {
		return err
	}
	if err != nil {
		d.a.note("%v", err)
	}
	d.useless = r.Of(preflight.CUDAInherited)
	if d.gpu != nil {
		d.gpu.used = usedGPUs(r)
	}
	if d.parkRings {
		d.rings = r.Of(preflight.IOURing)
	}
	if d.container != nil {
		// What criu takes of a container its runtime has told it: what is mounted from outside, and much else.
		r.Findings = slices.DeleteFunc(
			r.Findings,
			func(f preflight.Finding) bool { return f.Effect != preflight.Loses },
		)
	}
	found := r.Blocking()
	lines := byWhat(found)
	if len(lines) == 1 && !d.force && lines[0].effect != preflight.Loses {
		lines = nil // the error says it
	}
	for _, line := range lines {
		d.a.note("%s", line.text)
	}
	switch {
	case len(found) == 0:
		return nil
	case !d.force:
		return &codeError{
			exitError,
			"gpucr-fs check --pid tells the same at any time; --force dumps all the same",
			refused(r),
		}
	case found[0].Effect == preflight.Loses:
		d.a.note("dumped by --force all the same: processes may never go on")
	}
	return nil
}

// usedGPUs lists the GPUs that a tree uses; none where not all of them are known.
func usedGPUs(r preflight.Report) (used []cuda.UUID) {
	for _, g := range r.GPUs {
		u, err := cuda.ParseUUID(g.UUID)
		if err != nil {
			return nil
		}
		used = append(used, u)
	}
	return used
}

func refused(r preflight.Report) error {
	found := r.Blocking()
	lines := byWhat(found)
	err := fmt.Errorf("process %d cannot be dumped: %d obstacles", r.Root, len(lines))
	switch {
	case found[0].Effect == preflight.Loses:
		err = fmt.Errorf("process %d would be lost by a dump", r.Root)
	case len(lines) == 1:
		err = fmt.Errorf("process %d cannot be dumped: %s", r.Root, lines[0].text)
	}
	return err
}

// checkPID is check --pid.
func (a *app) checkPID(ctx context.Context, pid int, args restore.Args, flags cudaFlags, parkRings bool) (err error) {
	if pid <= 0 {
		return usage(errors.New("--pid takes the number of a process"), "")
	}
	n, end, err := (&nvidiaFlags{cudaFlags: flags}).open()
	if err != nil {
		return err
	}
	r, err := lookAt(ctx, pid, &args, n, parkRings)
	if err = errors.Join(err, end()); err != nil {
		return err
	}
	if err := a.print(r, func(w io.Writer) { printPreflight(w, r) }); err != nil {
		return err
	}
	if !r.OK() {
		return refused(r)
	}
	return nil
}

func printPreflight(w io.Writer, r preflight.Report) {
	fmt.Fprintf(w, "process %d and its descendants: %d\n", r.Root, r.Processes)
	if r.Driver != "" {
		fmt.Fprintf(w, "NVIDIA driver %s\n", r.Driver)
	}
	for _, g := range r.GPUs {
		fmt.Fprintf(w, "/dev/nvidia%d %s %s: used by %v\n", g.Minor, g.UUID, g.Model, g.Processes)
	}
	for _, line := range byWhat(r.Findings) {
		fmt.Fprintf(w, "%s: %s\n", line.effect, line.text)
	}
	if r.OK() {
		fmt.Fprintln(w, "no known problem prevents a dump")
	}
}

// finding is a line about one or more processes.
type finding struct {
	effect preflight.Effect
	text   string
}

// byWhat makes one line of what was found of several processes.
func byWhat(found []preflight.Finding) (lines []finding) {
	const named = 3
	type key struct {
		effect   preflight.Effect
		what, do string
	}
	var order []key
	whose := map[key][]string{}
	for _, f := range found {
		k := key{f.Effect, f.What, f.Do}
		if whose[k] == nil {
			order = append(order, k)
		}
		whose[k] = append(whose[k], fmt.Sprintf("%d (%s)", f.PID, f.Name))
	}
	for _, k := range order {
		who, of := whose[k], "process "
		if len(who) > 1 {
			of = "processes "
		}
		text := of + strings.Join(who[:min(len(who), named)], ", ")
		if more := len(who) - named; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		text += ": " + k.what
		if k.do != "" {
			text += "; " + k.do
		}
		lines = append(lines, finding{k.effect, text})
	}
	return lines
}
