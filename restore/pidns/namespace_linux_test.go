package pidns

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/restore/procfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func made(t *testing.T) *Namespace {
	t.Helper()
	n, err := New()
	must(t, err)
	t.Cleanup(func() { must(t, n.End()) })
	return n
}

// start starts a program in the namespace; how it ended comes over the channel. A namespace does not end before
// its last zombie is reaped.
func start(t *testing.T, n *Namespace, name string, args ...string) (*exec.Cmd, <-chan error) {
	t.Helper()
	cmd := exec.Command(name, args...)
	must(t, n.Do(cmd.Start))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return cmd, ended
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("it does not happen")
		}
	}
}

// A process born in the namespace has a number of its own there, the one that was asked for, and sees the namespace's
// /proc.
func TestNamespace(t *testing.T) {
	n := made(t)
	if numbers := procfs.Numbers(n.Init()); !slices.Equal(numbers, []int{n.Init(), 1}) {
		t.Errorf("the init has the pids %v", numbers)
	}
	if threads, err := os.ReadDir("/proc/" + strconv.Itoa(n.Init()) + "/task"); err != nil || len(threads) != 1 {
		t.Errorf("the init has %d threads, %v", len(threads), err)
	}
	must(t, n.Place(1234))
	cmd := exec.Command("sh", "-c", "echo $$; readlink /proc/self; set -- /proc/[0-9]*; echo $#")
	var out strings.Builder
	cmd.Stdout = &out
	must(t, n.Do(cmd.Start))
	must(t, cmd.Wait())
	// The shell and what it starts come after it, and nobody else is to be seen but the init.
	f := strings.Fields(out.String())
	number := 0
	if len(f) == 3 {
		number, _ = strconv.Atoi(f[0])
	}
	if number <= 1234 || number > 1244 || f[1] != strconv.Itoa(number+1) || f[2] != "2" {
		t.Errorf("a shell in the namespace says %q", f)
	}
	before, err := os.Readlink("/proc/self")
	must(t, err)
	if before != strconv.Itoa(os.Getpid()) {
		t.Errorf("/proc out here is another: %s", before)
	}
}

// Numbers that images need are no room for CRIU.
func TestClear(t *testing.T) {
	n := &Namespace{place: 30000}
	for _, c := range []struct {
		used []int
		last int
		here bool
	}{
		{nil, 30000, true},
		{[]int{1, 500, 30000, 30000 + room + 1}, 30000, true},
		{[]int{30001}, 30000 - room, false},
		{[]int{30000 + room}, 30000 - room, false},
		{[]int{30000 - room + 1, 30005}, 30000 - 2*room, false},
		{spread(), 30000, true},
	} {
		if last, here := n.Clear(c.used); last != c.last || here != c.here {
			t.Errorf("%v: %d, %v", c.used, last, here)
		}
	}
}

func spread() (used []int) {
	for id := 1; id < 40000; id += 100 {
		used = append(used, id)
	}
	return used
}

// Until it is released an init ends with its command, and everybody with it; afterwards it stays until the last
// one has gone, and ends as the first one did.
func TestEnds(t *testing.T) {
	n := made(t)
	_, sleeper := start(t, n, "sleep", "3600")
	must(t, n.End())
	if err := <-sleeper; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("who was in the namespace: %v", err)
	}

	n = made(t)
	_, sleeper = start(t, n, "sleep", "3600")
	must(t, n.control.Close()) // as the kernel does when the command is killed
	if err := <-sleeper; err == nil {
		t.Error("a command has ended, and its namespace lives on")
	}
	must(t, n.End())

	n = made(t)
	// The shell ends, its child is the init's then: it is the first process, for a test.
	shell := exec.Command("sh", "-c", "(read x; exit 9) <&3 & echo $!")
	out, err := shell.StdoutPipe()
	must(t, err)
	r, w, err := os.Pipe()
	must(t, err)
	shell.ExtraFiles = []*os.File{r}
	must(t, n.Do(shell.Start))
	must(t, r.Close())
	b := make([]byte, 16)
	k, err := out.Read(b)
	must(t, err)
	root, err := strconv.Atoi(strings.TrimSpace(string(b[:k])))
	must(t, err)
	must(t, shell.Wait())
	init := n.Init()
	must(t, n.Release(root))
	guest, err := exec.Command("nsenter", "-t", strconv.Itoa(init), "-p", "-m",
		"sh", "-c", "sleep 3600 >/dev/null 2>&1 & echo $!").Output()
	must(t, err)
	must(t, w.Close())
	member, ok, err := Find(init)
	must(t, err)
	if !ok || member != (Member{init, 1}) {
		t.Errorf("the init is %+v, %v", member, ok)
	}
	until(t, func() bool { return len(procfs.Children(init)) == 1 }) // the guest, whom the init has adopted
	pid := procfs.Children(init)[0]
	member, ok, err = Find(pid)
	must(t, err)
	if !ok || member.Init != init || strconv.Itoa(member.Inside) != strings.TrimSpace(string(guest)) {
		t.Errorf("the guest %s is %+v, %v", guest, member, ok)
	}
	there, err := Member{init, 0}.Enter()
	must(t, err)
	visitor, left := start(t, there, "sleep", "3600")
	must(t, there.End())
	must(t, unix.Kill(pid, unix.SIGKILL))
	until(t, func() bool { return len(procfs.Children(init)) == 0 })
	if procfs.Program(init) == "" {
		t.Fatal("the init has ended, and somebody is there who came in from outside")
	}
	must(t, visitor.Process.Kill())
	<-left
	var status unix.WaitStatus
	if _, err := unix.Wait4(init, &status, 0, nil); err != nil || status.ExitStatus() != 9 {
		t.Errorf("the init ended with %d, %v", status.ExitStatus(), err)
	}
}

// Nobody who is not in one of our namespaces is taken for one who is.
func TestFindOthers(t *testing.T) {
	if m, ok, err := Find(os.Getpid()); ok || err != nil {
		t.Errorf("this process is %+v, %v", m, err)
	}
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", "sleep", "3600")
	must(t, cmd.Start())
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	until(t, func() bool { return len(procfs.Children(cmd.Process.Pid)) == 1 })
	pid := procfs.Children(cmd.Process.Pid)[0]
	if m, ok, err := Find(pid); ok || err != nil {
		t.Errorf("the first process of another namespace is %+v, %v", m, err)
	}
}

// Mounts of stores are told from others, whatever their names.
func TestStoreMounts(t *testing.T) {
	got := storeMounts(`22 27 0:21 / /proc rw,relatime - proc proc rw
45 22 0:41 / /mnt/a\040b rw,nosuid shared:7 master:2 - fuse.gpucr-fs /srv/my\134store rw,user_id=0
46 22 0:42 / /mnt/c rw - fuse.sshfs host: rw
47 22 0:43 / /mnt/d rw - fuse.gpucr-fs /srv/two rw
short
`)
	if want := []string{"/mnt/a b", "/mnt/d"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
