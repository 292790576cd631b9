package posix

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLogTakesLinesWithoutTheServer writes lines of a log while the server stands still: no line waits for a round trip
// to it. Readers see each at once.
func TestLogTakesLinesWithoutTheServer(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	log := openat(t, m.opendir(dir), "dump.log", unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC,
		0o600)
	reader := openat(t, m.opendir(dir), "dump.log", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	var want bytes.Buffer
	line := func(i int) []byte {
		b := fmt.Appendf(nil, "(00.%06d) line %d\n", i, i)
		want.Write(b)
		return b
	}
	writeAll(t, log, line(0)) // the kernel asks the server, once for a mount, whether it has extended attributes

	must(t, m.cmd.Process.Signal(syscall.SIGSTOP))
	defer m.cmd.Process.Signal(syscall.SIGCONT)
	done := make(chan error, 1)
	lines := make([][]byte, 5000)
	for i := range lines {
		lines[i] = line(i + 1)
	}
	go func() {
		for _, b := range lines {
			if _, err := unix.Write(log, b); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(20 * time.Second):
		must(t, m.cmd.Process.Signal(syscall.SIGCONT))
		<-done
		t.Fatal(
			"a line of a log waits for the server: the kernel (Linux 6.9) or this user (root) has no FUSE " +
				"passthrough, or the mount does not use it",
		)
	}
	must(t, m.cmd.Process.Signal(syscall.SIGCONT))

	got := make([]byte, want.Len()+1)
	n, err := unix.Pread(reader, got, 0)
	must(t, err)
	if !bytes.Equal(got[:n], want.Bytes()) {
		t.Errorf("who had the log open reads %d bytes, not the %d that were written", n, want.Len())
	}
	must(t, unix.Close(reader))
	must(t, unix.Close(log))
	wantFile(t, filepath.Join(dir, "dump.log"), want.Bytes())
	must(t, os.WriteFile(filepath.Join(dir, "inventory.img"), []byte("x"), 0o644))
	m.seal("A")
	wantFile(t, filepath.Join(dir, "dump.log"), want.Bytes())
}

// TestLogIsAFile does to a log what is done to files: it is appended to by several, cut, extended, punched, mapped,
// timed, renamed, linked and unlinked while open.
func TestLogIsAFile(t *testing.T) {
	m := start(t, serveArgs{Store: newStore(t)})
	dir := m.draft("A")
	p := filepath.Join(dir, "x.log")
	want := noise(1, 100_000)
	fd, err := unix.Open(p, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
	must(t, err)
	writeAll(t, fd, want)
	must(t, unix.Ftruncate(fd, 60_001))
	want = want[:60_001]
	must(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 8192))
	clear(want[4096 : 4096+8192])
	must(t, unix.Fallocate(fd, 0, 60_000, 5000))
	want = append(want, make([]byte, 4999)...)
	other, err := unix.Open(p, unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	must(t, err)
	for i := range 100 {
		b := fmt.Appendf(nil, "line %d\n", i)
		writeAll(t, other, b)
		want = append(want, b...)
	}
	must(t, unix.Close(other))
	mapped, err := unix.Mmap(fd, 0, len(want), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	if !bytes.Equal(mapped, want) {
		t.Error("the mapped log holds other bytes than were written")
	}
	copy(mapped[100:], "mapped")
	copy(want[100:], "mapped")
	must(t, unix.Munmap(mapped))
	wantFile(t, p, want)

	when := time.Date(2020, 2, 3, 4, 5, 6, 789, time.UTC)
	must(t, os.Chtimes(p, when, when))
	fi, err := os.Stat(p)
	must(t, err)
	if !fi.ModTime().Equal(when) || fi.Size() != int64(len(want)) || fi.Mode().Perm() != 0o640 {
		t.Errorf("the log is %v, %d bytes, of %v; want %d bytes of %v", fi.Mode(), fi.Size(), fi.ModTime(), len(want),
			when)
	}
	_, err = unix.Pwrite(fd, []byte("later"), 0)
	must(t, err)
	copy(want, "later")
	if fi, err = os.Stat(p); err != nil || time.Since(fi.ModTime()) > time.Hour {
		t.Errorf("after another write the log is of %v, %v", fi.ModTime(), err)
	}

	q := filepath.Join(dir, "y.log")
	must(t, os.Rename(p, q))
	must(t, os.Link(q, p))
	wantFile(t, p, want)
	must(t, os.Remove(p))
	wantFile(t, q, want)
	must(t, os.Truncate(q, 10))
	wantFile(t, q, want[:10])
	again, err := unix.Open(q, unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, os.Remove(q))
	writeAll(t, again, []byte("unlinked"))
	got := make([]byte, 100)
	n, err := unix.Pread(fd, got, 0)
	if err != nil || string(got[:n]) != "unlinked" {
		t.Errorf("an unlinked log reads %q, %v", got[:n], err)
	}
	must(t, unix.Close(again))
	must(t, unix.Close(fd))
	if _, err := os.Stat(q); err == nil {
		t.Error("the unlinked log is there")
	}
	for range 100 { // a log is made where one just went
		must(t, os.WriteFile(q, []byte("new"), 0o600))
		wantFile(t, q, []byte("new"))
		must(t, os.Remove(q))
	}
}
