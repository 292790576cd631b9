package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestScratchAgainstBytes runs random operations on a scratch file and on a byte slice.
func TestScratchAgainstBytes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	p := newPool(t.TempDir(), 1<<20)
	n, _ := p.newNode(syscall.S_IFREG, 0o600, 0, 0, false)
	var want []byte
	for i := range 3000 {
		off := r.IntN(200_000)
		switch r.IntN(5) {
		case 0, 1:
			data := noise(uint64(i), 1+r.IntN(40_000)) // an empty write leaves the size
			if k, errno := n.writeAt(data, int64(off)); k != len(data) || errno != 0 {
				t.Fatalf("write: %d of %d, %v", k, len(data), errno)
			}
			if need := off + len(data); need > len(want) {
				want = append(want, make([]byte, need-len(want))...)
			}
			copy(want[off:], data)
		case 2:
			n.truncate(int64(off))
			want = append(want[:min(off, len(want))], make([]byte, max(0, off-len(want)))...)
		case 3:
			length := 1 + r.IntN(50_000)
			n.punch(int64(off), int64(length))
			if off < len(want) {
				clear(want[off:min(len(want), off+length)])
			}
		case 4:
			buf := make([]byte, r.IntN(60_000))
			k, errno := n.readAt(buf, int64(off))
			if errno != 0 || k != max(0, min(len(buf), len(want)-off)) ||
				string(buf[:k]) != string(want[min(off, len(want)):min(off, len(want))+k]) {
				t.Fatalf("step %d: read %d at %d of %d differs, %v", i, k, off, len(want), errno)
			}
		}
		if size, _, _ := n.statLocked(); size != int64(len(want)) {
			t.Fatalf("step %d: size %d, want %d", i, size, len(want))
		}
	}
	n.unlink()
	if used := p.used.Load(); used != 0 {
		t.Errorf("%d bytes are still taken after unlinking", used)
	}
}

func TestScratchIsBounded(t *testing.T) {
	p := newPool(t.TempDir(), 4*grain+2*nodeCost)
	dir, errno := p.newNode(syscall.S_IFDIR, 0o700, 0, 0, false)
	if errno != 0 {
		t.Fatal(errno)
	}
	f, _ := p.newNode(syscall.S_IFREG, 0o600, 0, 0, false)
	dir.add("f", f)
	if n, errno := f.writeAt(make([]byte, 4*grain), 0); n != 4*grain || errno != 0 {
		t.Errorf("%d bytes within the bound: %v", n, errno)
	}
	if _, errno := p.newNode(syscall.S_IFREG, 0, 0, 0, false); errno != syscall.ENOSPC {
		t.Errorf("a node beyond the bound: %v", errno)
	}
	if n, errno := f.writeAt([]byte{1}, 3*grain+5); n != 1 || errno != 0 {
		t.Errorf("overwriting a full file: %v", errno)
	}
	if _, errno := f.writeAt([]byte{1}, 4*grain); errno != syscall.ENOSPC {
		t.Errorf("writing beyond the bound: %v", errno)
	}
	if errno := f.truncate(1 << 40); errno == 0 {
		t.Error("a scratch file may become larger than all scratch")
	}
	f.open(false)
	dir.remove("f", false)
	buf := make([]byte, 10)
	if n, errno := f.readAt(buf, 0); n != 10 || errno != 0 {
		t.Errorf("an unlinked open file reads %d bytes, %v", n, errno)
	}
	f.close()
	if errno := f.open(false); errno != syscall.ESTALE {
		t.Errorf("a file that is gone opens: %v", errno)
	}
	if got := p.used.Load(); got != nodeCost {
		t.Errorf("%d bytes taken after the last close, want the directory's %d", got, nodeCost)
	}
	dir.drop()
	if got := p.used.Load(); got != 0 || len(p.backed) != 0 {
		t.Errorf("%d bytes and %d files taken after all is gone", got, len(p.backed))
	}
}

// TestLogsGiveWay makes more logs than the mount keeps: none fails, the oldest are gone, and what nobody but its maker
// can make again stays.
func TestLogsGiveWay(t *testing.T) {
	for what, bounds := range map[string]struct {
		bytes int64
		files int
	}{"bytes": {1 << 20, 4096}, "files": {1 << 40, 6}} {
		t.Run(what, func(t *testing.T) {
			s := newStore(t)
			srv := mounted(t, s, Options{ScratchBytes: bounds.bytes})
			srv.scratch.mu.Lock()
			srv.scratch.files = bounds.files
			srv.scratch.mu.Unlock()
			write(t, filepath.Join(srv.Dir(), "notes"), []byte("mine"))
			text := bytes.Repeat([]byte("a line of a log\n"), 150_000/16)
			var logs []string
			for i := range 40 {
				dir := filepath.Join(srv.Dir(), topName, fmt.Sprintf("dump-%d", i))
				must(t, os.Mkdir(dir, 0o755))
				log := filepath.Join(dir, "dump.log")
				write(t, log, text)
				write(t, filepath.Join(dir, "inventory.img"), []byte("x"))
				_, err := srv.Seal(context.Background(), filepath.Base(dir))
				must(t, err)
				logs = append(logs, log)
			}
			for i, log := range logs {
				if i >= len(logs)-3 {
					wantFile(t, log, text)
				} else if _, err := os.Stat(log); i < len(logs)-8 && !errors.Is(err, os.ErrNotExist) {
					t.Errorf("log %d is still there: %v", i, err)
				}
			}
			wantFile(t, filepath.Join(srv.Dir(), "notes"), []byte("mine"))
			if st := srv.Stats(); what == "bytes" && (st.ScratchBytes == 0 || st.ScratchBytes > 1<<20) {
				t.Errorf("%d bytes of scratch are held", st.ScratchBytes)
			}
		})
	}
}

// TestReplacedFileCanStillBeOpened opens what another has put a new file in the place of, as a program may that has
// just looked it up, and sees the room come back once nobody has it.
func TestReplacedFileCanStillBeOpened(t *testing.T) {
	srv := mounted(t, newStore(t), Options{Logger: quiet()})
	dir := filepath.Join(srv.Dir(), "replaced")
	must(t, os.Mkdir(dir, 0o755))
	name := filepath.Join(dir, "state")
	before := srv.scratch.used.Load()
	for i := range 50 {
		was := fmt.Sprintf("state %d", i)
		must(t, os.WriteFile(name, []byte(was), 0o600))
		fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, os.WriteFile(name+".new", bytes.Repeat([]byte{'n'}, 1<<20), 0o600))
		must(t, os.Rename(name+".new", name))
		got, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil || string(got) != was {
			t.Fatalf("what was there before the rename reads %q, %v; want %q", got, err, was)
		}
		must(t, unix.Close(fd))
		must(t, os.Remove(name))
	}
	deadline := time.Now().Add(time.Minute)
	for srv.scratch.used.Load() > before {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are still taken with all files gone", srv.scratch.used.Load()-before)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestUnlinkedFilesGiveRoom keeps unlinked files from standing in the way of new ones.
func TestUnlinkedFilesGiveRoom(t *testing.T) {
	p := newPool(t.TempDir(), 8*grain)
	for range 5 {
		n, errno := p.newNode(syscall.S_IFREG, 0o600, 0, 0, false)
		if errno != 0 {
			t.Fatal(errno)
		}
		n.known = true
		p.makeRoom(6 * grain)
		if k, errno := n.writeAt(make([]byte, 6*grain), 0); k != 6*grain || errno != 0 {
			t.Fatalf("wrote %d, %v", k, errno)
		}
		n.unlink()
		if errno := n.open(false); errno != 0 {
			t.Fatalf("opening it before the room is needed: %v", errno)
		}
		n.close()
	}
	p.makeRoom(8 * grain)
	if used := p.used.Load(); used != 0 {
		t.Errorf("%d bytes are still taken", used)
	}
}
