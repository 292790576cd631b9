package restore

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// elsewhere prepares a command that runs in a mount namespace of its own, from which nothing is propagated and into
// which nothing is, with a folder for temporary files that nobody else sees.
func elsewhere(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	tmp := t.TempDir()
	script := `mount -t tmpfs none "$0" && export TMPDIR="$0" && exec "$@"`
	return exec.Command(
		"unshare",
		append([]string{"--mount", "--propagation", "private", "sh", "-c", script, tmp}, args...)...)
}

// runElsewhere runs the program there.
func (b *bench) runElsewhere(args ...string) (string, error) {
	b.t.Helper()
	cmd := elsewhere(b.t, append([]string{string(program)}, args...)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	late := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	defer late.Stop()
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%v: %w: %s", args, err, out.String())
	}
	return out.String(), nil
}

// restoreElsewhere is restore there.
func (x *target) restoreElsewhere(args ...string) error {
	x.b.t.Helper()
	x.Reset()
	stop := make(chan struct{})
	var reaping sync.WaitGroup
	reaping.Go(func() { x.Reap(stop) })
	_, err := x.b.runElsewhere(append([]string{"restore", x.b.store, x.name}, args...)...)
	close(stop)
	reaping.Wait()
	x.Restored(x.pid)
	return err
}

// A command in another mount namespace than the daemon restores and dumps as well as one beside it, also when nothing
// is propagated between the two.
func TestOtherMountNamespace(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	mnt := t.TempDir()
	b.run("mount", b.store, mnt)
	t.Cleanup(func() { b.try("umount", "--force", mnt) })
	must(t, x.restoreElsewhere("--wait"))

	// What is dumped there, where the process now is, is in the store, not in a folder that goes with the namespace.
	pid := strconv.Itoa(x.pid)
	if out, err := exec.Command("nsenter", "-t", pid, "-m", string(program),
		"dump", b.store, "two", "-t", pid).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must(t, x.Dumped())
	if !b.has("two") {
		t.Fatal("the dump is not in the store")
	}
	x.name = "two"
	x.mustRestore("--wait")
	x.checks()

	// A mount would be where the daemon is.
	if out, err := b.runElsewhere("mount", b.store, t.TempDir()); err == nil ||
		!strings.Contains(out, "another mount namespace") {
		t.Errorf("a mount that its user cannot see: %v: %s", err, out)
	}
	b.run("umount", mnt)
	must(t, b.left.Nothing())
}

// The other way around: the daemon is in a namespace of its own, where its mounts are, and commands come from outside.
func TestDaemonInOtherMountNamespace(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	must(t, b.left.Nothing()) // the daemon that served the dump has ended
	mnt := t.TempDir()
	d := elsewhere(t, string(program), "mount", "-f", b.store, mnt)
	var said strings.Builder
	d.Stderr = &said
	must(t, d.Start())
	defer func() {
		d.Process.Signal(os.Interrupt)
		if err := d.Wait(); err != nil || t.Failed() {
			t.Errorf("the daemon: %v\n%s", err, said.String())
		}
		must(t, b.left.Nothing())
	}()
	for end := time.Now().Add(limit); ; wait(10) {
		if _, err := os.Stat(
			filepath.Join(fmt.Sprintf("/proc/%d/root", d.Process.Pid), mnt, ".checkpoints")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not serve")
		}
	}
	x.mustRestore("--wait", "--", "-W", t.TempDir())
	b.run("dump", b.store, "two", "-t", strconv.Itoa(x.pid))
	must(t, x.Dumped())
	x.name = "two"
	x.mustRestore()
	x.checks()
}

// A lazy-pages server of a store listens in the work directory that its user sees, and logs there what is asked for.
func TestLazyPagesElsewhere(t *testing.T) {
	b := newBench(t)
	x := b.dumped("one", quiet)
	mnt := t.TempDir()
	b.run("mount", b.store, mnt)
	t.Cleanup(func() { b.try("umount", "--force", mnt) })
	images := filepath.Join(mnt, ".checkpoints", "one")
	for _, verbose := range []string{"-v4", "--verbosity=4", "-vv"} {
		x.Reset()
		logs := t.TempDir()
		// The work directory is in the folder that only this namespace has.
		script := `set -e; mkdir $TMPDIR/work; ` + string(
			program,
		) + ` lazy-pages -d -D $0 -W $TMPDIR/work -o lazy.log ` + verbose + ` --pidfile lazy.pid
` + os.Getenv(
			"GPUCR_FS_CRIU",
		) + ` restore --lazy-pages -d -D $0 -W $TMPDIR/work -o restore.log -v4 || { cp $TMPDIR/work/* $1; exit 1; }
pid=$(cat $TMPDIR/work/lazy.pid); while [ -e /proc/$pid/exe ]; do sleep 0.02; done
cp $TMPDIR/work/lazy.log $1`
		cmd := elsewhere(t, "sh", "-c", script, images, logs)
		out, err := cmd.CombinedOutput()
		if err != nil {
			text, _ := os.ReadFile(filepath.Join(logs, "restore.log"))
			t.Fatalf("%v: %s\n%s", err, out, text[max(0, len(text)-2000):])
		}
		x.Restored(x.pid)
		x.checks()
		text, err := os.ReadFile(filepath.Join(logs, "lazy.log"))
		must(t, err)
		for _, want := range []string{"restore prepared", "restore is resident", "checkpoint=one"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("with %s the log lacks %q:\n%s", verbose, want, text)
			}
		}
	}
	b.run("umount", mnt)
}
