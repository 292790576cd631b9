package restore

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/restore/procfs"
	"github.com/gpucr/gpucr-fs/restore/uffd"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// spareGuardian waits for the one guardian that a daemon keeps for its next restore.
func spareGuardian(t *testing.T) int {
	t.Helper()
	var spare, before []int
	for end := time.Now().Add(limit); len(spare) != 1 || !slices.Equal(spare, before); wait(100) {
		if time.Now().After(end) {
			t.Fatalf("the daemon keeps guardians %v, not one", spare)
		}
		before, spare = spare, program.Role("guardian")
	}
	return spare[0]
}

// guardianStopped gives a process that was dumped, the guardian that its next restore gets, and where the store is
// mounted. The guardian is stopped, so that criu waits.
func guardianStopped(t *testing.T) (b *bench, x *target, spare int, mnt string) {
	t.Helper()
	b = newBench(t)
	// What the kernel writes into its memory while criu makes it would keep it from running, too: a thread's number,
	// and where restartable sequences are.
	t.Setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
	x = b.dumped("one", lazytarget.Options{MB: 32, Threads: 1, Seed: 31, Quiet: true})
	mnt = t.TempDir()
	b.run("mount", b.store, mnt)
	t.Cleanup(func() { b.try("umount", "--force", mnt) })
	x.mustRestore("--wait")
	x.checks()
	spare = spareGuardian(t)
	must(t, syscall.Kill(spare, syscall.SIGSTOP))
	t.Cleanup(func() { syscall.Kill(spare, syscall.SIGCONT) })
	return b, x, spare, mnt
}

// made returns some time after criu has begun to make the process.
func (x *target) made(t *testing.T) {
	t.Helper()
	must(t, poll(func() bool { return syscall.Kill(x.pid, 0) == nil }))
	wait(500)
}

// criu is asked before the guardian can serve, and connects. Its tasks do not run until the guardian serves: what comes
// late is waited for. When the guardian, the daemon or both are killed meanwhile, criu ends what it has made and the
// restore is tried again.
func TestGuardianLate(t *testing.T) {
	for name, after := range map[string]func(guardian int) error{
		"goes on": func(guardian int) error { return syscall.Kill(guardian, syscall.SIGCONT) },
		"killed":  func(guardian int) error { return syscall.Kill(guardian, syscall.SIGKILL) },
		"daemon killed": func(guardian int) error {
			for _, pid := range program.Role("daemon") {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					return err
				}
			}
			return syscall.Kill(guardian, syscall.SIGCONT)
		},
		"both killed": func(guardian int) error {
			for _, pid := range append(program.Role("daemon"), guardian) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, x, spare, mnt := guardianStopped(t)
			work := t.TempDir()
			done := make(chan error, 1)
			go func() {
				_, err := x.restore(onDemand, "--", "-W", work)
				done <- err
			}()
			x.made(t)
			must(t, after(spare))
			must(t, <-done)
			x.checks()
			if n := x.SIGBUS(); n != 0 {
				t.Errorf("%d pages could not be read", n)
			}
			if _, err := os.Lstat(filepath.Join(work, uffd.SocketName)); !os.IsNotExist(err) {
				t.Errorf("the socket is left in the work directory: %v", err)
			}
			b.try("umount", "--force", mnt)
			must(t, quietly(b))
		})
	}
}

// The command, criu and the daemon are killed while the guardian cannot serve yet: it ends the tasks, which would wait
// for criu for ever.
func TestAllKilledEarly(t *testing.T) {
	b, x, spare, mnt := guardianStopped(t)
	done := make(chan struct{})
	go func() {
		x.restore(onDemand)
		close(done)
	}()
	x.made(t)
	killed := program.Role("restore")
	for _, pid := range killed {
		killed = append(killed, procfs.Children(pid)...) // criu
	}
	for _, pid := range append(killed, program.Role("daemon")...) {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	<-done
	must(t, syscall.Kill(spare, syscall.SIGCONT))
	stop := make(chan struct{})
	defer close(stop)
	go x.Reap(stop)
	if err := x.Ended(limit); err != nil {
		t.Errorf("%v, it is %s", err, state(x.pid))
		syscall.Kill(x.pid, syscall.SIGKILL)
	}
	b.try("umount", "--force", mnt)
	must(t, quietly(b))
}

// The command is killed when it has just stopped criu to end it: criu goes on, and ends what it has made.
func TestKilledWhileEndingCRIU(t *testing.T) {
	b, x, spare, mnt := guardianStopped(t)
	done := make(chan struct{})
	go func() {
		x.restore(onDemand)
		close(done)
	}()
	x.made(t)
	commands := program.Role("restore")
	var crius []int
	for _, pid := range commands {
		crius = append(crius, procfs.Children(pid)...)
	}
	for _, pid := range append(crius, x.pid) {
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	for _, pid := range commands {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	<-done
	must(t, syscall.Kill(spare, syscall.SIGCONT))
	stop := make(chan struct{})
	defer close(stop)
	go x.Reap(stop)
	if err := x.Ended(limit); err != nil {
		t.Errorf("%v, it is %s", err, state(x.pid))
		for _, pid := range append(crius, x.pid) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	b.try("umount", "--force", mnt)
	must(t, quietly(b))
}

// The guardian is killed when it could serve and criu has not come yet: the restore fails, and the socket is not left
// in the work directory.
func TestGuardianKilledBeforeCRIU(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	dir, work := t.TempDir(), t.TempDir()
	late, on := filepath.Join(dir, "criu"), filepath.Join(dir, "on")
	text := fmt.Sprintf("#!/bin/sh\nwhile [ \"$1\" = swrk ] && [ ! -e %s ]; do sleep .02; done\nexec %s \"$@\"\n",
		on, os.Getenv("GPUCR_FS_CRIU"))
	must(t, os.WriteFile(late, []byte(text), 0o700))
	t.Setenv("GPUCR_FS_CRIU", late)
	done := make(chan error, 1)
	go func() {
		_, err := x.restore(onDemand, "--", "-W", work)
		done <- err
	}()
	must(t, poll(func() bool { return strings.Contains(cli.Log(b.store), "restore prepared") }))
	for _, pid := range program.Role("guardian") {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	socket := filepath.Join(work, uffd.SocketName)
	if err := poll(func() bool {
		_, err := os.Lstat(socket)
		return os.IsNotExist(err)
	}); err != nil {
		t.Errorf("%s is left: %v", socket, err)
	}
	must(t, os.WriteFile(on, nil, 0o600))
	if err := <-done; cli.Code(err) != cli.Failed {
		t.Errorf("a restore without a guardian: %v", err)
	}
	must(t, x.Ended(limit))
	must(t, b.left.Nothing())
}

// Page maps that cannot be right are found when criu has been asked already: the restore fails with what is wrong with
// them, and nothing is left.
func TestDamagedPageMap(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	dir := filepath.Join(t.TempDir(), "images")
	b.run("export", b.store, "one", dir)
	// An entry after the last one, of a kind that there is none of.
	name := filepath.Join(dir, fmt.Sprintf("pagemap-%d.img", x.pid))
	text, err := os.ReadFile(name)
	must(t, err)
	entry := []byte{0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0x10, 1, 0x20, 0x40} // far up, one page, flags 64
	text = append(binary.LittleEndian.AppendUint32(text, uint32(len(entry))), entry...)
	must(t, os.WriteFile(name, text, 0o600))
	b.run("import", b.store, "bad", dir)
	work := t.TempDir()
	for _, args := range [][]string{nil, {"--wait"}} {
		x.name = "bad"
		_, err := x.restore(append(args, "--", "-W", work, "-o", "restore.log")...)
		if cli.Code(err) != cli.Failed ||
			!strings.Contains(fmt.Sprint(err), "checkpoint bad: read the images: pagemap-") {
			t.Errorf("a restore by damaged page maps: %v", err)
		}
		must(t, x.Ended(limit))
		if _, err := os.Lstat(filepath.Join(work, uffd.SocketName)); !os.IsNotExist(err) {
			t.Errorf("the socket is left in the work directory: %v", err)
		}
		must(t, b.left.Nothing())
	}
	x.name = "one"
	x.mustRestore("--wait", "--", "-W", work)
	x.checks()
}
