package crash

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// site is a store under attack and what it owes.
type site struct {
	t          *testing.T
	rand       *rand.Rand
	store, mnt string
	images     []string
	sealed     map[string]string        // checkpoint → directory it must equal
	doubt      map[string]string        // struck while it was being made: sealed and whole, or incomplete, or unknown
	gone       map[string]bool          // struck while it was being removed: whole, or unknown
	undone     map[string]bool          // listed as incomplete, until gc takes it
	typical    map[string]time.Duration // how long an operation takes when it is left alone
	made       int
	outcomes   map[string]int
}

func newSite(t *testing.T) *site {
	dir := t.TempDir()
	s := &site{
		t: t, rand: source(t), store: filepath.Join(dir, "store"), mnt: filepath.Join(dir, "mnt"),
		images: makeImages(t, dir, 4),
		sealed: map[string]string{}, doubt: map[string]string{}, gone: map[string]bool{}, undone: map[string]bool{},
		typical: map[string]time.Duration{}, outcomes: map[string]int{},
	}
	if err := os.Mkdir(s.mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	s.run("init", s.store)
	return s
}

func (s *site) run(args ...string) {
	s.t.Helper()
	if _, err := program.Run(s.t.Context(), args...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) newName() (name, images string) {
	s.made++
	return fmt.Sprintf("c%04d", s.made), s.images[s.rand.IntN(len(s.images))]
}

func (s *site) anySealed() string {
	return slices.Sorted(maps.Keys(s.sealed))[s.rand.IntN(len(s.sealed))]
}

// moment gives a random instant within an operation and a little beyond it.
func (s *site) moment(op string) time.Duration {
	return time.Duration(s.rand.Int64N(int64(s.typical[op] * 5 / 4)))
}

// strike runs a command and kills it at a random moment; it tells whether the command had ended well before.
func (s *site) strike(op string, args ...string) bool {
	s.t.Helper()
	cmd := program.Command(args...)
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	timer := time.AfterFunc(s.moment(op), func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	timer.Stop()
	if exit, ok := err.(*exec.ExitError); ok && exit.ExitCode() >= 0 {
		s.t.Fatalf("%s, not struck: %v", op, err)
	}
	s.count(op, err == nil)
	return err == nil
}

func (s *site) count(op string, finished bool) {
	if finished {
		s.outcomes[op+" finished"]++
	} else {
		s.outcomes[op+" killed"]++
	}
}

// time measures an operation that is left alone.
func (s *site) time(op string, f func()) {
	begun := time.Now()
	f()
	s.typical[op] = max(time.Since(begun), s.typical[op])
}

func (s *site) settle(name, images string, done bool) {
	if done {
		s.sealed[name] = images
	} else {
		s.doubt[name] = images
	}
}

func (s *site) strikeImport() {
	name, images := s.newName()
	s.settle(name, images, s.strike("import", "import", s.store, name, images))
}

func (s *site) strikeRemove() {
	name := s.anySealed()
	if s.strike("rm", "rm", "-y", s.store, name) {
		delete(s.sealed, name)
	} else {
		s.gone[name] = true
	}
}

func (s *site) strikeCollect() {
	name := s.anySealed()
	s.run("rm", "-y", s.store, name)
	delete(s.sealed, name)
	s.strike("gc", "gc", "-y", s.store)
}

// strikeDaemon writes a checkpoint through the mount, asks for its sealing, and kills the daemon somewhere on the way.
func (s *site) strikeDaemon() {
	name, images := s.newName()
	d, err := program.Serve(s.store, s.mnt)
	if err != nil {
		s.t.Fatal(err)
	}
	timer := time.AfterFunc(s.moment("seal"), func() { _ = d.Kill() })
	done := copyTree(images, filepath.Join(s.mnt, ".checkpoints", name)) == nil
	if done {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
		_, err := program.Run(ctx, "seal", s.store, name)
		cancel()
		done = err == nil
	}
	timer.Stop()
	if err := d.Kill(); err != nil {
		s.t.Fatal(err)
	}
	s.settle(name, images, done)
	s.count("daemon", done)
	unmountStale(s.t, s.mnt)
}

// look holds the names in the store to what it owes, and takes note of how doubts were settled.
func (s *site) look() {
	s.t.Helper()
	listed := s.list()
	for name, state := range listed {
		images, doubt := s.doubt[name]
		switch _, sealed := s.sealed[name]; {
		case sealed && state != index.Sealed:
			s.t.Fatalf("checkpoint %s was sealed and is listed as %s", name, state)
		case doubt && state == index.Sealed:
			s.sealed[name] = images
			s.outcomes["sealed all the same"]++
		case doubt && state == index.Incomplete:
			s.outcomes["incomplete"]++
			s.undone[name] = true
		case s.undone[name] && state == index.Incomplete:
		case !sealed:
			s.t.Fatalf("checkpoint %s is listed as %s; nobody made it, or it was removed", name, state)
		}
	}
	for name := range s.sealed {
		if _, ok := listed[name]; !ok {
			if !s.gone[name] {
				s.t.Fatalf("checkpoint %s was sealed and is not listed", name)
			}
			delete(s.sealed, name)
		}
	}
	clear(s.doubt)
	clear(s.gone)
}

// check holds the store to what it owes, content included, and lets gc take the rest.
func (s *site) check() {
	s.t.Helper()
	s.look()
	for name, images := range s.sealed {
		exports(s.t, s.store, name, images)
	}
	s.run("gc", "-y", s.store)
	clear(s.undone)
	for name, state := range s.list() {
		if state != index.Sealed {
			s.t.Fatalf("checkpoint %s is still listed as %s after gc", name, state)
		}
	}
	var left index.GCResult
	if err := program.JSON(s.t.Context(), &left, "gc", "-n", s.store); err != nil {
		s.t.Fatal(err)
	}
	if left.Reclaimable != 0 {
		s.t.Fatalf("%d bytes reclaimable right after gc", left.Reclaimable)
	}
	var use index.Usage
	if err := program.JSON(s.t.Context(), &use, "du", s.store); err != nil {
		s.t.Fatal(err)
	}
	// A pack with holes costs the file system a few blocks of its own for the list of extents.
	if occupied := packBytes(s.t, s.store); occupied > use.Stored+int64(use.Packs)*(64<<10) {
		s.t.Fatalf("packs occupy %d bytes on disk after gc, live chunks %d", occupied, use.Stored)
	}
	s.run("verify", s.store)
	for name, images := range s.sealed {
		exports(s.t, s.store, name, images)
	}
}

func (s *site) list() map[string]index.State {
	s.t.Helper()
	states, err := program.States(s.t.Context(), s.store)
	if err != nil {
		s.t.Fatal(err)
	}
	return states
}

// TestKill kills commands and daemons. Of the first hundred strikes each is followed by a check of all, later every
// fifth is: so several crashes come upon one another without a collection between them, and more of them in the time.
func TestKill(t *testing.T) {
	s := newSite(t)
	for range 3 {
		name, images := s.newName()
		s.time("import", func() { s.run("import", s.store, name, images) })
		s.sealed[name] = images
	}
	s.time("rm", func() { name := s.anySealed(); s.run("rm", "-y", s.store, name); delete(s.sealed, name) })
	s.time("gc", func() { s.run("gc", "-y", s.store) })
	s.typical["seal"] = s.typical["import"]
	s.time("seal", func() {
		name, images := s.newName()
		d, err := program.Serve(s.store, s.mnt)
		if err != nil {
			t.Fatal(err)
		}
		if err := copyTree(images, filepath.Join(s.mnt, ".checkpoints", name)); err != nil {
			t.Fatal(err)
		}
		s.run("seal", s.store, name)
		if err := d.Stop(); err != nil {
			t.Fatal(err)
		}
		s.sealed[name] = images
	})
	s.check()

	for n := range *strikes {
		for len(s.sealed) > 4 {
			name := s.anySealed()
			s.run("rm", "-y", s.store, name)
			delete(s.sealed, name)
		}
		ops := []func(){s.strikeImport, s.strikeDaemon}
		if len(s.sealed) > 0 {
			ops = append(ops, s.strikeRemove, s.strikeCollect)
		}
		ops[s.rand.IntN(len(ops))]()
		if n < 100 || n%5 == 0 || n == *strikes-1 {
			s.check()
		} else {
			s.look()
		}
	}
	for _, outcome := range slices.Sorted(maps.Keys(s.outcomes)) {
		t.Logf("%4d × %s", s.outcomes[outcome], outcome)
	}
}

// A daemon killed at any instant of its start or its run ends, leaves the store free, and its stale mount does not keep
// the next one from mounting at the same place.
func TestMountAfterKill(t *testing.T) {
	s := newSite(t)
	name, images := s.newName()
	s.run("import", s.store, name, images)
	s.time("start", func() { s.serve(name, images) })
	for range *strikes {
		d, err := program.StartServing(s.store, s.mnt)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(s.moment("start"))
		if err := d.Kill(); err != nil {
			t.Fatal(err)
		}
		s.serve(name, images)
	}
}

// serve mounts, compares and unmounts.
func (s *site) serve(name, images string) {
	s.t.Helper()
	d, err := program.Serve(s.store, s.mnt)
	if err != nil {
		s.t.Fatal(err)
	}
	if diff := differences(tree(s.t, filepath.Join(s.mnt, ".checkpoints", name)), tree(s.t, images)); len(diff) > 0 {
		s.t.Errorf("mounted again, the checkpoint differs: %v", diff)
	}
	if err := d.Stop(); err != nil {
		s.t.Fatal(err)
	}
}

// copyTree copies a directory as criu writes one: sequentially, file by file.
func copyTree(src, dst string) error {
	return filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, name)
		switch {
		case d.IsDir():
			return os.Mkdir(to, 0o755)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return os.Symlink(target, to)
		}
		in, err := os.Open(p)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		// Plain writes: copy_file_range and splice would take other paths through the kernel than criu's.
		_, err = io.Copy(struct{ io.Writer }{out}, struct{ io.Reader }{in})
		if closeErr := out.Close(); err == nil {
			err = closeErr
		}
		return err
	})
}

// packBytes gives the disk space that pack payload occupies.
func packBytes(t *testing.T, store string) int64 {
	t.Helper()
	var total int64
	for _, p := range packs(t, store) {
		total += diskBytes(t, p)
	}
	return total
}
