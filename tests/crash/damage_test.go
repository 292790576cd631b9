package crash

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/cli"
)

func packs(t *testing.T, store string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(store, "packs", "*.pack"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func diskBytes(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// flip changes one random byte of a file and gives its offset and the way back.
func flip(t *testing.T, r *rand.Rand, path string) (off int64, undo func()) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	off = r.Int64N(info.Size())
	xor := byte(1 + r.IntN(255))
	change := func() {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, off); err != nil {
			t.Fatal(err)
		}
		b[0] ^= xor
		if _, err := f.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
	}
	change()
	return off, change
}

// filled makes a store of three checkpoints, and nothing else in its packs.
func filled(t *testing.T) *site {
	s := newSite(t)
	for _, images := range s.images[:3] {
		name, _ := s.newName()
		s.run("import", s.store, name, images)
		s.sealed[name] = images
	}
	s.run("gc", "-y", s.store)
	return s
}

// TestFlippedByte damages one byte of a pack at a time. verify must name the checkpoints and files it concerns; reading
// them through the mount must fail with EIO where the damage lies and give the right bytes everywhere else.
func TestFlippedByte(t *testing.T) {
	s := filled(t)
	files := packs(t, s.store)
	for n := range *strikes {
		path := files[s.rand.IntN(len(files))]
		off, undo := flip(t, s.rand, path)
		where := fmt.Sprintf("strike %d, %s at %d", n, filepath.Base(path), off)

		var found index.VerifyResult
		if code := cli.Code(program.JSON(t.Context(), &found, "verify", s.store)); code != cli.Corrupt {
			t.Fatalf("%s: verify exits with %d, want %d", where, code, cli.Corrupt)
		}
		named := map[string]bool{}
		for _, p := range found.Problems {
			if _, ok := s.sealed[p.Checkpoint]; !ok || p.File == "" {
				t.Fatalf("%s: verify names no checkpoint and file: %+v", where, p)
			}
			named[p.Checkpoint+"/"+p.File] = true
		}
		if len(named) == 0 {
			t.Fatalf("%s: verify names nothing", where)
		}
		if n == 0 {
			s.saysSo(named)
		}
		s.readAll(where, named)
		undo()
	}
	s.run("verify", s.store)
	t.Logf("%d flipped bytes found by verify and answered with EIO", *strikes)
}

// saysSo checks what a person sees: every damaged file named in plain output.
func (s *site) saysSo(named map[string]bool) {
	s.t.Helper()
	out, err := program.Run(s.t.Context(), "verify", s.store)
	if cli.Code(err) != cli.Corrupt {
		s.t.Fatalf("verify: %v, want exit %d", err, cli.Corrupt)
	}
	text := out + err.Error()
	for name := range named {
		checkpoint, file, _ := strings.Cut(name, "/")
		if !slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
			return strings.Contains(line, checkpoint) && strings.Contains(line, file)
		}) {
			s.t.Errorf("no line of verify's output names %s and %s:\n%s", checkpoint, file, text)
		}
	}
}

// readAll reads every file of every checkpoint through a fresh mount: exactly the named ones have unreadable places.
func (s *site) readAll(where string, named map[string]bool) {
	s.t.Helper()
	d, err := program.Serve(s.store, s.mnt)
	if err != nil {
		s.t.Fatalf("%s: %v", where, err)
	}
	defer func() {
		if err := d.Stop(); err != nil {
			s.t.Errorf("%s: %v", where, err)
		}
	}()
	for name, images := range s.sealed {
		for _, file := range regularFiles(s.t, images) {
			unreadable := readDamaged(s.t, filepath.Join(s.mnt, ".checkpoints", name, file),
				filepath.Join(images, file))
			if damaged := named[name+"/"+file]; damaged != (unreadable > 0) {
				s.t.Fatalf("%s: %s of %s: %d unreadable pieces, named by verify: %v", where, file, name, unreadable,
					damaged)
			}
		}
	}
}

// TestLostIndex deletes the index; repair brings every checkpoint back from packs and journals, also when it is killed
// on its way.
func TestLostIndex(t *testing.T) {
	s := filled(t)
	lose := func() {
		if err := os.RemoveAll(filepath.Join(s.store, "index")); err != nil {
			t.Fatal(err)
		}
	}
	lose()
	if _, err := program.Run(t.Context(), "ls", s.store); err == nil || !strings.Contains(err.Error(), "repair") {
		t.Errorf("ls of a store without its index: %v, want an error that speaks of repair", err)
	}
	s.time("repair", func() { s.run("repair", s.store) })
	s.check()
	for range (*strikes + 9) / 10 {
		lose()
		s.strike("repair", "repair", s.store)
		s.run("repair", s.store)
		s.check()
	}
	name, images := s.newName()
	s.run("import", s.store, name, images)
	s.sealed[name] = images
	s.check()
}

// TestDamagedMetadata flips bytes of config, journals and index files. Whatever a command then answers, it is an error
// or the right bytes; and with the index gone as well, repair gives back what is whole or names what is not.
func TestDamagedMetadata(t *testing.T) {
	s := filled(t)
	pristine := filepath.Join(t.TempDir(), "pristine")
	if err := os.CopyFS(pristine, os.DirFS(s.store)); err != nil {
		t.Fatal(err)
	}
	for n := range *strikes {
		if err := os.RemoveAll(s.store); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(s.store, os.DirFS(pristine)); err != nil {
			t.Fatal(err)
		}
		targets := metadata(t, s.store)
		path := targets[s.rand.IntN(len(targets))]
		off, _ := flip(t, s.rand, path)
		rel, err := filepath.Rel(s.store, path)
		if err != nil {
			t.Fatal(err)
		}
		where := fmt.Sprintf("strike %d, %s at %d", n, rel, off)
		s.wholeOrError(where)
		if err := s.answer(where, "repair", s.store); err == nil {
			s.wholeOrError(where + ", repaired")
		}
	}
}

// answerTime is how long a command may take.
const answerTime = 2 * time.Minute

// answer runs a command, which has to end by itself, in time, and without a panic.
func (s *site) answer(where string, args ...string) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), answerTime)
	defer cancel()
	_, err := program.Run(ctx, args...)
	if err != nil && (cli.Code(err) <= 0 || strings.Contains(err.Error(), "panic")) {
		s.t.Fatalf("%s: %s: %v", where, args[0], err)
	}
	return err
}

// wholeOrError exports every checkpoint: each either equals what was put in or cannot be exported, with an error in
// words.
func (s *site) wholeOrError(where string) {
	s.t.Helper()
	for name, images := range s.sealed {
		dst := filepath.Join(s.t.TempDir(), "export")
		if err := s.answer(where, "export", s.store, name, dst); err == nil {
			if diff := differences(tree(s.t, dst), tree(s.t, images)); len(diff) > 0 {
				s.t.Fatalf("%s: checkpoint %s differs from what was put in: %v", where, name, diff)
			}
		}
		if err := os.RemoveAll(dst); err != nil {
			s.t.Fatal(err)
		}
	}
}

// metadata gives the files of a store that are neither payload nor empty.
func metadata(t *testing.T, store string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(store, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(p) == ".pack" || filepath.Dir(p) == store &&
			d.Name() != "config.json" {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > 0 {
			names = append(names, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
