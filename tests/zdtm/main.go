// Command zdtm runs CRIU's own test suite on a mount of a store, beside a plain directory in the same run, and tells
// which tests pass in one place and not in the other.
//
// Nothing of the suite is part of this module: -src is a source tree of CRIU in which whoever runs this has built the
// suite (make, make -C test/zdtm). Its driver, zdtm.py, runs as it is. All that differs is the program it is given as
// criu: this one, under that name, see wrapper.go. It puts the image directory of each dump into the mount, leaves a
// link to it where the driver made its own, and runs criu, or gpucr-fs in place of what the mode replaces.
//
// The modes:
//
//	host      criu dump and criu restore, images and logs in the mount
//	lazy      criu dump and criu restore --lazy-pages, with gpucr-fs lazy-pages; plain: with criu lazy-pages
//	restore   criu dump, gpucr-fs restore --wait; plain: criu restore
//	userns    as host, each test in a user namespace (and mount, pid, net namespaces) of its own
//
// Every mode runs in parts, plain directory and mount in turns. A test that passes in the plain directory and fails in
// the mount runs again, in both; it counts when that happens each time. The exit code is 1 when a test counts, or when
// the mount takes more than -ratio times as long.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/measure"
)

// mode is one way of using the mount.
type mode struct {
	name   string
	flavor string   // of zdtm.py: h is the host's namespaces, uns all new ones
	args   []string // for zdtm.py
	as     wrapping // what stands in for criu
}

var modes = []mode{
	{"host", "h", nil, wrapping{}},
	{"lazy", "h", []string{"--lazy-pages"}, wrapping{LazyPages: true}},
	{"restore", "h", nil, wrapping{Restore: true}},
	{"userns", "uns", nil, wrapping{}},
	{"userns-restore", "uns", nil, wrapping{Restore: true}},
}

type options struct {
	src, out, gpucr, criu string
	modes                 []string
	tests, exclude        string
	parts, again          int
	ratio                 float64
	flags                 string
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("zdtm", flag.ContinueOnError)
	which := f.String("modes", "host,lazy,restore,userns", "what to run")
	f.StringVar(&o.src, "src", "", "source tree of CRIU with the suite built in it")
	f.StringVar(&o.out, "out", "",
		"folder for store, mount and logs, on the file system to compare with (default: a new one in -src)")
	f.StringVar(&o.tests, "tests", ".*", "regular expression of the tests to run, as zdtm/static/env00")
	f.StringVar(&o.exclude, "exclude", "", "regular expression of tests to leave out")
	f.IntVar(&o.parts, "parts", 8, "parts that take turns; at most the number of tests")
	f.IntVar(&o.again, "again", 2, "how often a test is run again that fails in the mount only")
	f.Float64Var(&o.ratio, "ratio", 1.5, "how many times as long the mount may take")
	f.StringVar(&o.flags, "mount-flags", "", "further flags of gpucr-fs mount")
	f.StringVar(&o.gpucr, "gpucr", "bin/gpucr-fs", "the program to test")
	f.StringVar(&o.criu, "criu", os.Getenv("CRIU"), "criu 4.2 or newer (default $CRIU, else build/criu/criu)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.modes = strings.Split(*which, ",")
	for _, name := range o.modes {
		if !slices.ContainsFunc(modes, func(m mode) bool { return m.name == name }) {
			return o, fmt.Errorf("unknown mode %q", name)
		}
	}
	if o.src == "" {
		return o, errors.New("-src is missing: give CRIU's sources with its tests built (make zdtm ZDTM=DIR)")
	}
	var err error
	if o.src, err = filepath.Abs(o.src); err != nil {
		return o, err
	}
	return o, measure.Programs(&o.gpucr, &o.criu)
}

func main() {
	if filepath.Base(os.Args[0]) == wrapperName {
		os.Exit(wrap(os.Args))
	}
	measure.Main("zdtm", run)
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if err := checkSuite(ctx, o.src); err != nil {
		return err
	}
	if o.out == "" {
		if o.out, err = os.MkdirTemp(o.src, "gpucr-fs-"); err != nil {
			return err
		}
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return err
	}
	// The tests' users go through it.
	if err := errors.Join(os.MkdirAll(o.out, 0o755), os.Chmod(o.out, 0o755)); err != nil {
		return err
	}
	r := &runner{options: o, asRoot: !mayRaiseLimits()}
	if r.asRoot {
		fmt.Println(
			"This process lacks CAP_SYS_RESOURCE, without which criu dumps nobody else's processes: all tests " +
				"run as root.",
		)
	}
	if m, err := measure.Describe(); err == nil {
		fmt.Printf("%s\nStore, mount and logs: %s\n\n", m, o.out)
	}
	var bad []string
	plain := map[string]*tally{} // by the arguments of zdtm.py: modes may share them
	for _, m := range modes {
		if !slices.Contains(o.modes, m.name) {
			continue
		}
		problems, err := r.mode(ctx, m, plain)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		bad = append(bad, problems...)
	}
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

// mayRaiseLimits tells whether criu may read and set the limits of other users' processes.
func mayRaiseLimits() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&head, &data[0]) != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// runner runs modes.
type runner struct {
	options
	asRoot bool
}

// mode runs one mode, prints what became of it and gives what is wrong.
func (r *runner) mode(ctx context.Context, m mode, plainRuns map[string]*tally) (bad []string, err error) {
	dir := filepath.Join(r.out, m.name)
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	key := m.flavor + strings.Join(m.args, " ")
	plain, shared := plainRuns[key], true
	if plain == nil {
		plain, shared = newTally(), false
		plainRuns[key] = plain
	}
	there, err := r.place(dir, "plain", wrapping{CRIU: r.criu})
	if err != nil {
		return nil, err
	}
	store, mnt := filepath.Join(dir, "store"), filepath.Join(dir, "mnt")
	if err := os.MkdirAll(mnt, 0o755); err != nil {
		return nil, err
	}
	p := cli.Program(r.gpucr)
	if _, err := p.Run(ctx, "init", store); err != nil {
		return nil, err
	}
	if _, err := p.Run(ctx,
		append([]string{"mount", "--allow-other", store, mnt}, strings.Fields(r.flags)...)...); err != nil {
		return nil, err
	}
	defer func() {
		// Dumps that criu gave up are drafts still, which is an error of umount's own.
		if _, uerr := p.Run(context.WithoutCancel(ctx), "umount", "--force", mnt); len(cli.Mounts(store)) > 0 {
			err = errors.Join(err, uerr)
		}
	}()
	w := m.as
	w.CRIU, w.GPUCR, w.Store, w.Mount = r.criu, r.gpucr, store, mnt
	here, err := r.place(dir, "mount", w)
	if err != nil {
		return nil, err
	}
	mount := newTally()
	for part := range r.parts {
		sel := []string{"-T", r.tests, "--test-shard-count", fmt.Sprint(r.parts), "--test-shard-index",
			fmt.Sprint(part)}
		if !shared {
			if err := r.zdtm(ctx, m, there, plain, sel); err != nil {
				return nil, err
			}
		}
		if err := r.zdtm(ctx, m, here, mount, sel); err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "%s: part %d of %d: plain %s, mount %s\n", m.name, part+1, r.parts, plain, mount)
	}
	only := mount.worse(plain)
	first := len(only)
	took := [2]time.Duration{plain.total(mount), mount.total(plain)}
	for range r.again {
		if len(only) == 0 {
			break
		}
		p2, m2 := newTally(), newTally()
		if err := errors.Join(r.zdtm(ctx, m, there, p2, named(only)),
			r.zdtm(ctx, m, here, m2, named(only))); err != nil {
			return nil, err
		}
		only = m2.worse(p2)
	}
	ratio := took[1].Seconds() / max(took[0].Seconds(), 0.001)
	fmt.Printf(
		"%-8s plain: %s in %.0f s; mount: %s in %.0f s, %.2f times as long; failed in the mount only: %d at first, "+
			"%d each time\n",
		m.name,
		plain,
		took[0].Seconds(),
		mount,
		took[1].Seconds(),
		ratio,
		first,
		len(only),
	)
	for _, name := range only {
		fmt.Printf("         %s\n", name)
	}
	if len(only) > 0 {
		bad = append(bad, fmt.Sprintf("%s: %d tests fail in the mount only", m.name, len(only)))
	}
	if ratio > r.ratio {
		bad = append(bad, fmt.Sprintf("%s: the mount takes %.2f times as long", m.name, ratio))
	}
	if plain.passed() == 0 {
		bad = append(bad, m.name+": no test passes in the plain directory, so nothing was compared")
	}
	return bad, nil
}

// named selects tests by name.
func named(tests []string) (args []string) {
	for _, t := range tests {
		args = append(args, "-t", t)
	}
	return args
}
