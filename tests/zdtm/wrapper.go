package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// wrapperName is the name under which this program stands in for criu.
const wrapperName = "criu"

// wrapping says what stands in for criu. It lies, as JSON, beside the link through which this program is started as
// criu: an environment would reach the tests.
type wrapping struct {
	CRIU  string // the real one
	GPUCR string // gpucr-fs; "" leaves everything to criu
	Store string
	Mount string // of the store
	// LazyPages and Restore have gpucr-fs do what criu would.
	LazyPages, Restore bool
}

const wrappingFile = "wrapping.json"

// place makes a folder from which zdtm.py is to run criu, and its log's name.
func (r *runner) place(dir, name string, w wrapping) (place, error) {
	p := place{dir: filepath.Join(dir, name), log: filepath.Join(dir, name+".log")}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return p, err
	}
	self, err := os.Executable()
	if err != nil {
		return p, err
	}
	if err := os.Symlink(self, filepath.Join(p.dir, wrapperName)); err != nil {
		return p, err
	}
	b, err := json.Marshal(w)
	if err != nil {
		return p, err
	}
	return p, os.WriteFile(filepath.Join(p.dir, wrappingFile), b, 0o644)
}

// wrap is this program as criu: args[1] is what criu is to do. It returns only when it cannot.
func wrap(args []string) int {
	err := errors.New("criu is called without an action")
	if len(args) > 1 {
		err = wrapped(args)
	}
	fmt.Fprintln(os.Stderr, "criu wrapper:", err)
	return 1
}

func wrapped(args []string) error {
	b, err := os.ReadFile(filepath.Join(filepath.Dir(args[0]), wrappingFile))
	if err != nil {
		return err
	}
	var w wrapping
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	action, rest := args[1], args[2:]
	if err := settleYard(rest); err != nil {
		return err
	}
	if w.Mount != "" && (action == "dump" || action == "pre-dump") {
		if err := w.redirect(value(rest, "--images-dir")); err != nil {
			return fmt.Errorf("put the images into the mount: %w", err)
		}
	}
	switch {
	case w.LazyPages && action == "lazy-pages":
		return become(w.GPUCR, append([]string{"lazy-pages"}, without(rest, "--no-default-config")...))
	case w.Restore && action == "restore":
		return w.restore(rest)
	}
	return become(w.CRIU, append([]string{action}, rest...))
}

// settleYard makes the one path absolute that a test gives relative to the image directory: the mount is at another
// depth.
func settleYard(args []string) error {
	i := slices.Index(args, "--cgroup-yard")
	if i < 0 || i+1 == len(args) || filepath.IsAbs(args[i+1]) {
		return nil
	}
	images, err := filepath.Abs(value(args, "--images-dir"))
	args[i+1] = filepath.Join(images, args[i+1])
	return err
}

// become becomes a program.
func become(program string, args []string) error {
	return os.NewSyscallError("execve "+program, unix.Exec(program, append([]string{program}, args...), os.Environ()))
}

// redirect makes a checkpoint and puts a link to it where the driver has made a folder for images. What is in that
// already moves along.
func (w *wrapping) redirect(images string) error {
	if images == "" {
		return errors.New("criu got no --images-dir")
	}
	name := strings.ReplaceAll(strings.TrimPrefix(filepath.Clean(images), "dump/zdtm/"), "/", "-") + "-" +
		strconv.FormatInt(time.Now().UnixNano(), 36)
	dir := filepath.Join(w.Mount, ".checkpoints", name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	before, err := os.Stat(images)
	if err == nil {
		err = os.Chmod(dir, before.Mode().Perm())
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(images)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from := filepath.Join(images, e.Name())
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, e.Name()), b, 0o644)
		}
		if err == nil {
			err = os.Remove(from)
		}
		if err != nil {
			return err
		}
	}
	if err := os.Remove(images); err != nil {
		return err
	}
	return os.Symlink(dir, images)
}

// restore has gpucr-fs restore what the link of redirect leads to.
func (w *wrapping) restore(args []string) error {
	images := value(args, "--images-dir")
	dir, err := os.Readlink(images)
	if err != nil {
		return err
	}
	log := value(args, "--log-file")
	rest := without(without(args, "--images-dir", images), "--log-file", log)
	rest = append(without(rest, "--no-default-config"), "--log-file", filepath.Join(dir, log))
	return become(w.GPUCR, append([]string{"restore", "--criu", w.CRIU, "--wait", w.Store, filepath.Base(dir), "--"},
		rest...))
}

// value gives what follows an option, "" without it.
func value(args []string, option string) string {
	if i := slices.Index(args, option); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// without takes an option, with its value, out of arguments.
func without(args []string, option ...string) []string {
	i := slices.Index(args, option[0])
	if i < 0 {
		return args
	}
	return slices.Delete(slices.Clone(args), i, i+len(option))
}
