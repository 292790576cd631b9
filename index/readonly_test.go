package index

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// ext4Disk mounts a new ext4 of size bytes. readOnly mounts it read-only.
func ext4Disk(t *testing.T, size int64) (dir string, readOnly func()) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s (needs root, a loop device and e2fsprogs)", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, func() {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// everything gives what a folder holds: names, modes, lengths, times to the nanosecond, contents.
func everything(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		sum := [sha256.Size]byte{}
		if d.Type().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			sum = sha256.Sum256(b)
		}
		out[p] = fmt.Sprintf("%o %d:%d %d bytes %d blocks, %v %v, %x", st.Mode, st.Uid, st.Gid, st.Size, st.Blocks,
			st.Mtim, st.Ctim, sum)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustBeAsBefore(t *testing.T, dir string, before map[string]string) {
	t.Helper()
	after := everything(t, dir)
	for _, p := range slices.Sorted(maps.Keys(before)) {
		if after[p] != before[p] {
			t.Errorf("%s was %s, and is %s", p, before[p], after[p])
		}
	}
	for _, p := range slices.Sorted(maps.Keys(after)) {
		if before[p] == "" {
			t.Errorf("%s was made", p)
		}
	}
}

// killedChild seals a checkpoint, begins another, and is killed.
func killedChild(dir string) error {
	s, err := Open(context.Background(), dir, Options{FreeFloor: 1})
	if err != nil {
		return err
	}
	for _, name := range []string{"second", "begun"} {
		d, err := s.Create(context.Background(), name, drafts.CreateOptions{})
		if err != nil {
			return err
		}
		f, err := d.Create("pages-1.img", 0o644)
		if err != nil {
			return err
		}
		if _, err := f.WriteAt(memory(2, 1<<20), 0); err != nil {
			return err
		}
		if name == "begun" {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		if err := f.Close(); err != nil {
			return err
		}
		if _, err := d.Seal(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// leftStates are states in which a store with the checkpoint "first" can be found. Each may add "second".
var leftStates = map[string]struct {
	leave  func(t *testing.T, dir string)
	copied bool // the index cannot be read where it is
	second bool
}{
	"closed": {leave: func(*testing.T, string) {}},
	"written by a process that was killed": {copied: true, second: true, leave: func(t *testing.T, dir string) {
		out, err := child(t, "killed", dir)
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.Exited() {
			t.Fatalf("the child ended by itself: %v: %s", err, out)
		}
	}},
	"with an index that is behind the journals": {copied: true, second: true, leave: func(t *testing.T, dir string) {
		old := filepath.Join(t.TempDir(), chunks.IndexFolder)
		copyDir(t, filepath.Join(dir, chunks.IndexFolder), old)
		s := openTestStore(t, dir, testOptions(t))
		write(t, s, "second", map[string][]byte{"pages-1.img": memory(2, 1<<20)})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, chunks.IndexFolder)); err != nil {
			t.Fatal(err)
		}
		copyDir(t, old, filepath.Join(dir, chunks.IndexFolder))
	}},
	"with half a frame at the end of its journal": {leave: func(t *testing.T, dir string) {
		appendTo(t, filepath.Join(dir, chunks.PacksFolder, pack.JournalName(1)), []byte("GPJF\x00\x10\x00\x00half"))
	}},
	"with an index that a full disk cut short": {copied: true, leave: func(t *testing.T, dir string) {
		if err := os.Remove(filepath.Join(dir, chunks.IndexFolder, "SOUND")); err != nil {
			t.Fatal(err)
		}
	}},
	"cut short, with half a frame at the end of its journal": {copied: true, leave: func(t *testing.T, dir string) {
		appendTo(t, filepath.Join(dir, chunks.PacksFolder, pack.JournalName(1)), []byte("GPJF\x00\x10\x00\x00half"))
		if err := os.Remove(filepath.Join(dir, chunks.IndexFolder, "SOUND")); err != nil {
			t.Fatal(err)
		}
	}},
	"without an index": {copied: true, leave: func(t *testing.T, dir string) {
		if err := os.RemoveAll(filepath.Join(dir, chunks.IndexFolder)); err != nil {
			t.Fatal(err)
		}
	}},
	"with a damaged table": {copied: true, leave: func(t *testing.T, dir string) {
		tables, err := filepath.Glob(filepath.Join(dir, chunks.IndexFolder, "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatalf("no table: %v", err)
		}
		for _, name := range tables {
			if err := os.Truncate(name, 100); err != nil {
				t.Fatal(err)
			}
		}
	}},
	"with a table that nobody knows": {copied: true, leave: func(t *testing.T, dir string) {
		if err := os.WriteFile(filepath.Join(dir, chunks.IndexFolder, "000777.sst"), []byte("half written"),
			0o600); err != nil {
			t.Fatal(err)
		}
	}},
	"with a log that was just made": {copied: true, leave: func(t *testing.T, dir string) {
		if err := os.WriteFile(filepath.Join(dir, chunks.IndexFolder, "000777.vlog"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}},
	"in the middle of an exchange of its index": {leave: func(t *testing.T, dir string) {
		if err := os.Rename(filepath.Join(dir, chunks.IndexFolder),
			filepath.Join(dir, chunks.IndexFolder+".new")); err != nil {
			t.Fatal(err)
		}
	}},
	"without a lock file": {leave: func(t *testing.T, dir string) {
		if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
			t.Fatal(err)
		}
	}},
}

func appendTo(t *testing.T, name string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReadOnly opens stores for reading only, in all states and on disks that can and that cannot be written, and finds
// everything there and nothing changed.
func TestReadOnly(t *testing.T) {
	disk, mountReadOnly := ext4Disk(t, 512<<20)
	files := map[string][]byte{"pages-1.img": memory(1, 2<<20)}
	first := filepath.Join(t.TempDir(), "store")
	if err := Init(first, InitOptions{PackSize: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	s := openTestStore(t, first, testOptions(t))
	write(t, s, "first", files)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	writable := t.TempDir()
	for name, state := range leftStates {
		for _, parent := range []string{disk, writable} {
			dir := filepath.Join(parent, name)
			copyDir(t, first, dir)
			state.leave(t, dir)
		}
	}
	mountReadOnly()
	for where, parent := range map[string]string{"on a disk that is mounted read-only": disk,
		"where it could be written": writable} {
		for name, state := range leftStates {
			t.Run(name+" "+where, func(t *testing.T) {
				dir := filepath.Join(parent, name)
				before := everything(t, dir)
				tmp := t.TempDir()
				t.Setenv("TMPDIR", tmp)
				o := testOptions(t)
				o.ReadOnly = true
				for range 2 { // one beside the other
					s := openTestStore(t, dir, o)
					mustHold(t, s, "first", files)
					if state.second {
						mustHold(t, s, "second", map[string][]byte{"pages-1.img": memory(2, 1<<20)})
					}
					mustVerify(t, s, 0)
					if _, err := s.Usage(t.Context()); err != nil {
						t.Error(err)
					}
					if _, err := s.GC(t.Context(), upkeep.GCOptions{DryRun: true}); err != nil {
						t.Error(err)
					}
					mustRefuseToWrite(t, s)
				}
				if got, err := os.ReadDir(tmp); err != nil || state.copied != (len(got) > 0) {
					t.Errorf("temporary files: %v, %v", got, err)
				}
				if parent == writable && name != "without a lock file" {
					_, err := Open(t.Context(), dir, testOptions(t))
					if fault.ClassOf(err) != fault.InUse || !strings.Contains(err.Error(), "reading only") {
						t.Errorf("a writer beside readers: %v", err)
					}
				}
				mustBeAsBefore(t, dir, before)
			})
		}
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left of copies: %v, %v", left, err)
	}
	if _, err := Open(t.Context(), filepath.Join(disk, "closed"),
		testOptions(t)); fault.ClassOf(err) != fault.ReadOnly || fault.HintOf(err) == "" {
		t.Errorf("to write on a disk that is mounted read-only: %v (hint %q)", err, fault.HintOf(err))
	}
}

// TestHugeFile makes files of a store as long as files can be, with a hole behind what they hold, or nothing else.
// Nobody reads that to its end, and what the other files tell is there.
func TestHugeFile(t *testing.T) {
	files := map[string][]byte{"pages-1.img": memory(1, 2<<20)}
	s := newTestStore(t, testOptions(t))
	write(t, s, "first", files)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	table, err := filepath.Glob(filepath.Join(s.dir, chunks.IndexFolder, "*.sst"))
	if err != nil || len(table) == 0 {
		t.Fatalf("no table: %v", err)
	}
	sound := t.TempDir()
	copyDir(t, s.dir, sound)
	for _, file := range []string{
		filepath.Join(chunks.IndexFolder, filepath.Base(table[0])),
		filepath.Join(chunks.IndexFolder, "MANIFEST"),
		filepath.Join(chunks.IndexFolder, "DISCARD"),
		filepath.Join(chunks.IndexFolder, "KEYREGISTRY"),
		filepath.Join(chunks.PacksFolder, pack.JournalName(1)),
		filepath.Join(chunks.PacksFolder, pack.Name(1)),
	} {
		for _, emptied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, emptied: %v", file, emptied), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "store")
				copyDir(t, sound, dir)
				if emptied {
					if err := os.Truncate(filepath.Join(dir, file), 0); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.Truncate(filepath.Join(dir, file), 1<<43); err != nil {
					t.Fatal(err)
				}
				o := testOptions(t)
				o.ReadOnly = true
				r, err := Open(t.Context(), dir, o)
				if err != nil {
					t.Fatal(err)
				}
				payload := !emptied || filepath.Base(file) != pack.Name(1)
				if payload {
					mustHold(t, r, "first", files)
				}
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				corrupt := func(err error) bool { return fault.ClassOf(err) == fault.Corrupt }
				if w, err := Open(t.Context(), dir, testOptions(t)); err == nil {
					write(t, w, "second", map[string][]byte{"pages-1.img": memory(2, 2<<20)})
					if _, err := w.GC(t.Context(), upkeep.GCOptions{}); err != nil && !corrupt(err) {
						t.Error(err)
					}
					mustHold(t, w, "second", map[string][]byte{"pages-1.img": memory(2, 2<<20)})
					if err := w.Close(); err != nil {
						t.Error(err)
					}
				} else if !corrupt(err) {
					t.Error(err)
				}
				if _, err := Repair(t.Context(), dir, testOptions(t)); err != nil {
					t.Fatal(err)
				}
				if payload {
					mustHold(t, openTestStore(t, dir, testOptions(t)), "first", files)
				}
			})
		}
	}
}

// mustRefuseToWrite calls all that changes a store.
func mustRefuseToWrite(t *testing.T, s *Store) {
	t.Helper()
	for what, call := range map[string]func() error{
		"create":   func() error { _, err := s.Create(t.Context(), "new", drafts.CreateOptions{}); return err },
		"remove":   func() error { return s.Remove(t.Context(), []string{"first"}) },
		"tag":      func() error { return s.Tag(t.Context(), "first", []string{"golden"}, nil) },
		"rename":   func() error { return s.Rename(t.Context(), "first", "renamed") },
		"label":    func() error { return s.Label("first", map[string]string{"team": "a"}) },
		"profile":  func() error { return s.SetProfile("first", []byte("p")) },
		"hot set":  func() error { return s.SetHotSet("first", 1, func(io.Writer) error { return nil }) },
		"gc":       func() error { _, err := s.GC(t.Context(), upkeep.GCOptions{}); return err },
		"optimize": func() error { _, err := s.Optimize(t.Context(), upkeep.OptimizeOptions{}); return err },
		"a commit": func() error { return s.chunks.Commit([]chunks.Put{{Key: "x", Payload: []byte("y")}}) },
		"a storage": func() error {
			return fault.Classify("x", storage.WriteFile(s.o.Storage, filepath.Join(s.dir, "x"), nil))
		},
	} {
		if err := call(); fault.ClassOf(err) != fault.ReadOnly || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (class %v, hint %q)", what, err, fault.ClassOf(err), fault.HintOf(err))
		}
	}
}

func TestReadOnlyBesideAWriter(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	o := testOptions(t)
	o.ReadOnly = true
	_, err := Open(t.Context(), s.dir, o)
	if fault.ClassOf(err) != fault.InUse || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("a reader beside a writer: %v", err)
	}
}

func TestReadOnlyWithoutContents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := Init(dir, InitOptions{}); err != nil {
		t.Fatal(err)
	}
	before := everything(t, dir)
	o := testOptions(t)
	o.ReadOnly = true
	s := openTestStore(t, dir, o)
	if list, err := s.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("it lists %v, %v", list, err)
	}
	mustVerify(t, s, 0)
	mustBeAsBefore(t, dir, before)
}

// TestReadOnlyDamage has damage reported and not recorded.
func TestReadOnlyDamage(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "first", map[string][]byte{"pages-1.img": memory(1, 8<<20)})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(s.dir, chunks.PacksFolder, pack.Name(1)), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 8192); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	before := everything(t, s.dir)
	o := testOptions(t)
	o.ReadOnly = true
	for range 2 {
		s := openTestStore(t, s.dir, o)
		mustVerify(t, s, 1)
		if _, err := read(s, "first", "pages-1.img"); fault.ClassOf(err) != fault.Corrupt {
			t.Errorf("a damaged chunk was read: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	mustBeAsBefore(t, s.dir, before)
}

// TestTempIndex has room refused where there is none, and what killed readers left removed.
func TestTempIndex(t *testing.T) {
	_, err := newTempIndex(1 << 60)
	if fault.ClassOf(err) != fault.NoSpace || !strings.Contains(fault.HintOf(err), "TMPDIR") {
		t.Errorf("a copy of 2^60 bytes: %v (hint %q)", err, fault.HintOf(err))
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	left := filepath.Join(tmp, tempPrefix+"left")
	if err := os.MkdirAll(filepath.Join(left, chunks.IndexFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	one, err := newTempIndex(1)
	if err != nil {
		t.Fatal(err)
	}
	two, err := newTempIndex(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("what a killed process left is still there: %v", err)
	}
	if _, err := os.Stat(one.Path()); err != nil {
		t.Errorf("a copy in use was removed: %v", err)
	}
	if err := errors.Join(one.Close(), two.Close()); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadDir(tmp); err != nil || len(got) > 0 {
		t.Errorf("left: %v, %v", got, err)
	}
}

func TestAtRest(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "first", map[string][]byte{"pages-1.img": memory(1, 1<<20)})
	if keys.AtRest(filepath.Join(s.dir, chunks.IndexFolder)) {
		t.Error("an index in use is at rest")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !keys.AtRest(filepath.Join(s.dir, chunks.IndexFolder)) {
		t.Error("an index that was closed is not at rest")
	}
}
