package restore

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

// criu runs CRIU itself, as users of a plain directory do.
func criu(t testing.TB, work string, args ...string) error {
	t.Helper()
	log := filepath.Join(work, args[0]+".log")
	cmd := exec.Command(os.Getenv("GPUCR_FS_CRIU"), append(args, "-W", work, "-o", log, "-v3")...)
	if err := cmd.Start(); err != nil {
		return err
	}
	late := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	defer late.Stop()
	if err := cmd.Wait(); err != nil {
		text, _ := os.ReadFile(log)
		return fmt.Errorf("criu %s: %w\n%s", args[0], err, text[max(0, len(text)-2000):])
	}
	return nil
}

// gpucr-fs lazy-pages takes the place of criu lazy-pages for plain directories, also when it is killed, and leaves
// nothing when nobody comes.
func TestLazyPagesOfADirectory(t *testing.T) {
	b := newBench(t)
	x := b.start("plain", lazytarget.Options{MB: 48, Threads: 1, Seed: 8, Quiet: true})
	images := filepath.Join(t.TempDir(), "images")
	must(t, os.Mkdir(images, 0o700))
	must(t, criu(t, images, "dump", "-D", images, "-t", strconv.Itoa(x.pid)))
	must(t, x.Dumped())
	restore := func() string {
		t.Helper()
		work := t.TempDir()
		x.Reset()
		b.run(
			"lazy-pages", "-d", "-D", images, "-W", work, "--prefetch-rate", "64MiB", "--pidfile", "server.pid", "-o",
			"server.log", "-v",
		)
		must(t, criu(t, work, "restore", "-D", images, "--lazy-pages", "-d"))
		x.Restored(x.pid)
		return work
	}
	for range 2 {
		restore()
		x.checks()
		must(t, b.left.Nothing())
	}
	rnd := source(t)
	for range *strikes {
		work := restore()
		wait(rnd.IntN(400))
		text, err := os.ReadFile(filepath.Join(work, "server.pid"))
		must(t, err)
		pid, err := strconv.Atoi(string(text))
		must(t, err)
		syscall.Kill(pid, syscall.SIGKILL)
		x.checks()
		must(t, b.left.Nothing())
	}
	// Nobody comes.
	work := t.TempDir()
	b.run("lazy-pages", "-d", "-D", images, "-W", work)
	for _, pid := range program.Role("lazy-pages") {
		syscall.Kill(pid, syscall.SIGTERM)
	}
	must(t, b.left.Nothing())
	if _, err := os.Lstat(filepath.Join(work, "lazy-pages.socket")); err == nil {
		t.Error("the socket is left")
	}
}

// A root that follows the checkpoint sealed last shows an earlier one while somebody has it open: the memory is that of
// the checkpoint that CRIU reads. A bind mount of a checkpoint, as engines make them, is known for what it is.
func TestLazyPagesOfAFollowingRoot(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	mnt := t.TempDir()
	b.run("mount", b.store, mnt)
	t.Cleanup(func() { b.try("umount", "--force", mnt) })
	root, err := os.Open(mnt)
	must(t, err)
	y := b.dumped("two", lazytarget.Options{MB: 48, Threads: 1, Seed: 2, Quiet: true})
	serve := func(x *target, images string) {
		t.Helper()
		work := t.TempDir()
		x.Reset()
		b.run("lazy-pages", "-d", "-D", images, "-W", work)
		must(t, criu(t, work, "restore", "-D", images, "--lazy-pages", "-d"))
		x.Restored(x.pid)
		x.checks()
		for end := time.Now().Add(limit); len(program.Role("lazy-pages")) > 0; wait(10) {
			if time.Now().After(end) {
				t.Fatal("the lazy-pages server does not end")
			}
		}
	}
	serve(x, mnt)
	must(t, root.Close())
	serve(y, mnt)

	x.Kill()
	bound := t.TempDir()
	must(t, unix.Mount(filepath.Join(mnt, ".checkpoints", "one"), bound, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(bound, unix.MNT_DETACH) })
	serve(x, bound)
	must(t, unix.Unmount(bound, unix.MNT_DETACH))
	b.run("umount", mnt)
}
