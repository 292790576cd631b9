package index

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// smallDisk mounts a file system of size bytes.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatalf("mount a small tmpfs: %v (tests need root)", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// writeUntilFull writes random bytes into a draft until that fails.
func writeUntilFull(t *testing.T, s *Store, name string) error {
	t.Helper()
	d, err := s.Create(t.Context(), name, drafts.CreateOptions{})
	if err != nil {
		return err
	}
	defer func() {
		if err := d.Abort(); err != nil {
			t.Errorf("abort: %v", err)
		}
	}()
	f, err := d.Create("pages-1.img", 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for i := range uint64(400) {
		p := memory(1000+i, 1<<20)
		for j := range p {
			p[j] ^= byte(uint64(j) * i >> 3) // nothing of it repeats
		}
		if _, err := f.WriteAt(p, f.Size()); err != nil {
			return err
		}
	}
	_, err = d.Seal(t.Context())
	return err
}

func TestDiskFull(t *testing.T) {
	for _, tt := range []struct {
		name  string
		floor int64
		// ballast fills the disk behind the store's back, so that the kernel and not the floor says no.
		ballast int64
	}{
		{name: "down to the floor", floor: 32 << 20},
		{name: "really full", floor: 1, ballast: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			disk := smallDisk(t, "160m")
			dir := filepath.Join(disk, "store")
			if err := Init(dir, InitOptions{PackSize: 16 << 20}); err != nil {
				t.Fatal(err)
			}
			o := testOptions(t)
			o.FreeFloor = tt.floor
			s := openTestStore(t, dir, o)
			kept := map[string][]byte{"pages-1.img": memory(1, 24<<20)}
			write(t, s, "kept", kept)
			write(t, s, "dropped", map[string][]byte{"pages-1.img": memory(2, 24<<20)})
			ballast := filepath.Join(disk, "ballast")
			if tt.ballast > 0 {
				fillDisk(t, ballast, s)
			}
			err := writeUntilFull(t, s, "big")
			if fault.ClassOf(err) != fault.NoSpace || fault.HintOf(err) == "" ||
				!strings.Contains(err.Error(), "space") {
				t.Fatalf("a full disk said: %v (class %v, hint %q)", err, fault.ClassOf(err), fault.HintOf(err))
			}
			s.reading.DropCache()
			mustHold(t, s, "kept", kept)
			if tt.ballast > 0 {
				if err := os.Remove(ballast); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Remove(t.Context(), []string{"dropped"}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
				t.Fatal(err)
			}
			after := map[string][]byte{"pages-1.img": memory(3, 16<<20)}
			write(t, s, "after", after)
			mustVerify(t, s, 0)
			s = reopen(t, s)
			mustHold(t, s, "kept", kept)
			mustHold(t, s, "after", after)
			mustVerify(t, s, 0)
			if names, _ := s.Names(t.Context()); len(names) != 2 {
				t.Errorf("left: %+v", names)
			}
		})
	}
}

// fillDisk leaves less than one write of free space.
func fillDisk(t *testing.T, path string, s *Store) {
	t.Helper()
	free, err := s.chunks.Packs.Free()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// 20 MiB: the floor's own margin is 16, so that the store begins to write and runs into the end.
	if err := unix.Fallocate(int(f.Fd()), 0, 0, free-20<<20); err != nil {
		t.Fatal(err)
	}
}

// TestCutIndex lets the index run into a disk without a free page. Writers get an error, readers are served. When there
// is room again the same store goes on, with the draft that was open. So does a store that was closed meanwhile.
func TestCutIndex(t *testing.T) { // not beside others: a SIGBUS is every index's
	for name, closed := range map[string]bool{"the store stays open": false,
		"the store is closed while the disk is full": true} {
		t.Run(name, func(t *testing.T) {
			disk := smallDisk(t, "160m")
			dir := filepath.Join(disk, "store")
			if err := Init(dir, InitOptions{PackSize: 16 << 20}); err != nil {
				t.Fatal(err)
			}
			s := openTestStore(t, dir, testOptions(t))
			kept := map[string][]byte{"pages-1.img": memory(1, 24<<20)}
			write(t, s, "kept", kept)
			d, err := s.Create(t.Context(), "begun", drafts.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			begun := map[string][]byte{"core-1.img": memory(2, 3<<20)}
			f, err := d.Create("core-1.img", 0o644)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(begun["core-1.img"], 0); err != nil {
				t.Fatal(err)
			}
			if err := f.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			ballast := filepath.Join(disk, "ballast")
			fillWholly(t, ballast)
			var full error
			for i := 0; full == nil && i < 10000; i++ {
				full = s.chunks.PutLocal([]chunks.Put{{Key: "test", Payload: memory(uint64(i), 4096)}})
			}
			if fault.ClassOf(full) != fault.NoSpace || !strings.Contains(full.Error(), "are kept free") {
				t.Fatalf("a full disk said: %v", full)
			}
			s.reading.DropCache()
			mustHold(t, s, "kept", kept)
			if closed {
				if err := d.Abort(); fault.ClassOf(err) != fault.NoSpace {
					t.Errorf("abort on a full disk: %v", err)
				}
				_ = s.Close() // says that the draft is left
				// The hint may not name what has to open the store itself.
				if s, err := Open(t.Context(), dir, testOptions(t)); fault.ClassOf(err) != fault.NoSpace ||
					!strings.Contains(fault.HintOf(err), "by other means") {
					t.Errorf("opened on a full disk: %v, %v (hint %q)", s, err, fault.HintOf(err))
				}
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			if closed {
				s = openTestStore(t, dir, testOptions(t))
				mustHold(t, s, "kept", kept)
			} else {
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
				if _, err := d.Seal(t.Context()); err != nil {
					t.Fatal(err)
				}
				mustHold(t, s, "begun", begun)
			}
			write(t, s, "after", begun)
			mustVerify(t, s, 0)
			s = reopen(t, s)
			mustHold(t, s, "kept", kept)
			mustHold(t, s, "after", begun)
			mustVerify(t, s, 0)
		})
	}
}

// fillWholly leaves no free page.
func fillWholly(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for p := make([]byte, 1<<20); len(p) >= 512; {
		if _, err := f.Write(p); err != nil {
			p = p[:len(p)/2]
		}
	}
}

// TestStoresThatCannotBeOpened are told of, at once and with what to do.
func TestStoresThatCannotBeOpened(t *testing.T) {
	make := func() string {
		dir := filepath.Join(t.TempDir(), "store")
		if err := Init(dir, InitOptions{}); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	pipe := make()
	if err := os.Remove(filepath.Join(pipe, configName)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(pipe, configName), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), pipe, testOptions(t)); fault.ClassOf(err) != fault.Corrupt ||
		fault.HintOf(err) == "" {
		t.Errorf("config.json is a pipe: %v", err)
	}
	fixed := make()
	if err := unix.Mount(fixed, fixed, "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("bind mount: %v (tests need root)", err)
	}
	t.Cleanup(func() { unix.Unmount(fixed, unix.MNT_DETACH) })
	if err := unix.Mount("", fixed, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), fixed, testOptions(t)); err == nil ||
		!strings.Contains(fault.HintOf(err), "read-write") {
		t.Errorf("a disk that cannot be written: %v (hint %q)", err, fault.HintOf(err))
	}
}
