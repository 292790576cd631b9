package sigbus

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fullDisk gives the folder of a tmpfs of one MiB, and fill, which leaves it without a free page.
func fullDisk(t *testing.T) (dir string, fill func()) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("mount a small tmpfs: %v (tests need root)", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, func() {
		f, err := os.Create(filepath.Join(dir, "ballast"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for {
			if _, err := f.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}
}

// sparse maps a file of n pages that occupies no disk.
func sparse(t *testing.T, path string, n int) []byte {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(int64(n) * 4096); err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, n*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) })
	return m
}

func TestWritesOnAFullDisk(t *testing.T) {
	dir, fill := fullDisk(t)
	marker := filepath.Join(dir, "sound")
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const pages = 64
	m := sparse(t, filepath.Join(dir, "log"), pages)
	m[0] = 7 // this page has its room
	fill()
	w, err := New(marker)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.Faulted() {
		t.Fatal("a fault is reported before there was one")
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for p := g; p < pages; p += 4 {
				for i := 1; i < 4096; i += 97 {
					m[p*4096+i] = byte(p)
				}
			}
		})
	}
	wg.Wait()
	if !w.Faulted() {
		t.Fatal("no fault: the disk was not full, and the test shows nothing")
	}
	if _, err := os.Stat(marker); !os.IsNotExist(err) {
		t.Errorf("the marker is still there: %v", err)
	}
	for p := range pages {
		for i := 1; i < 4096; i += 97 {
			if m[p*4096+i] != byte(p) {
				t.Fatalf("page %d lost what was written there", p)
			}
		}
	}
	if m[0] != 7 {
		t.Error("a page that had its room was replaced")
	}
	later, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	if later.Faulted() {
		t.Error("an earlier fault is counted")
	}
}

// A file that shrinks below its mapping gives zeros where the kernel would end the process.
func TestReadsBehindTheEnd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "table")
	m := sparse(t, path, 2)
	m[4096] = 1
	w, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	if got := m[4096]; got != 0 || !w.Faulted() {
		t.Errorf("read %d, faulted %v", got, w.Faulted())
	}
}

func TestMarkersRunOut(t *testing.T) {
	var all []*Watch
	defer func() {
		for _, w := range all {
			w.Close()
		}
	}()
	for i := range maxMarkers {
		w, err := New(filepath.Join(t.TempDir(), "m"))
		if err != nil {
			t.Fatalf("marker %d: %v", i, err)
		}
		all = append(all, w)
	}
	if _, err := New("x"); err == nil {
		t.Error("a table of fixed size took one too many")
	}
	all[3].Close()
	w, err := New("x")
	if err != nil {
		t.Errorf("a slot that was given back is not used: %v", err)
	}
	all = append(all, w)
}

// Other signals of the kind still reach Go: a crash must stay a crash.
func TestOtherBusErrorsStayGo(t *testing.T) {
	w, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if os.Getenv("SIGBUS_CHILD") != "" {
		unix.Kill(os.Getpid(), unix.SIGBUS)
		select {}
	}
	p, err := os.StartProcess(os.Args[0], []string{os.Args[0], "-test.run=^TestOtherBusErrorsStayGo$"}, &os.ProcAttr{
		Env: append(os.Environ(), "SIGBUS_CHILD=1", "GOTRACEBACK=none"),
	})
	if err != nil {
		t.Fatal(err)
	}
	st, err := p.Wait()
	if err != nil || st.Success() {
		t.Errorf("a SIGBUS that somebody sent was swallowed: %v, %v", st, err)
	}
}
