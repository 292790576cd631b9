package restore

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

var (
	strikes = flag.Int("torture.n", 4, "how often each test kills or damages")
	seed    = flag.Uint64("torture.seed", uint64(time.Now().UnixNano()), "seed of the random choices")

	program   cli.Program
	targetBin string
)

// limit bounds every run of the program.
const limit = 2 * time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "restore-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		program, err = cli.Build(dir)
	}
	if err == nil {
		targetBin, err = lazytarget.Build(dir)
	}
	var criu string
	if err == nil {
		criu, err = cli.FindCRIU()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("GPUCR_FS_CRIU", criu)
	os.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	// The private folders of this test's restores are its own.
	os.Setenv("TMPDIR", dir)
	return m.Run()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// source gives the random numbers of one test and tells how to get them again.
func source(t *testing.T) *rand.Rand {
	t.Logf("-torture.n=%d -torture.seed=%d", *strikes, *seed)
	return rand.New(rand.NewPCG(*seed, uint64(len(t.Name()))))
}

// bench is a store with what a test does to it; at its end nothing may be left.
type bench struct {
	t     testing.TB
	store string
	left  *cli.Left
	flags []string
}

func newBench(t testing.TB, flags ...string) *bench {
	t.Helper()
	b := &bench{t: t, store: filepath.Join(t.TempDir(), "store")}
	b.run("init", b.store)
	b.flags = flags
	return b.watched()
}

// watched has the test fail when something is left at its end.
func (b *bench) watched() *bench {
	t := b.t
	t.Helper()
	b.left = program.WatchLeft(b.store)
	t.Cleanup(func() {
		if err := b.left.Nothing(); err != nil {
			t.Errorf("%v", err)
			for _, pid := range program.Processes() {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			for _, m := range cli.Mounts(b.store) {
				syscall.Unmount(m, syscall.MNT_FORCE|syscall.MNT_DETACH)
			}
		}
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", cli.Log(b.store))
		}
	})
	return b
}

// try runs a command.
func (b *bench) try(args ...string) (string, error) {
	return program.RunIn(limit, append(args, b.flags...)...)
}

// run runs a command that must succeed.
func (b *bench) run(args ...string) string {
	b.t.Helper()
	out, err := b.try(args...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// target is a process that was dumped into the store.
type target struct {
	*lazytarget.Target
	b    *bench
	name string
	pid  int
}

// start starts a process, to be dumped as name.
func (b *bench) start(name string, o lazytarget.Options) *target {
	b.t.Helper()
	return b.startProgram(targetBin, name, o)
}

func (b *bench) startProgram(bin, name string, o lazytarget.Options) *target {
	b.t.Helper()
	dir := filepath.Join(b.t.TempDir(), name)
	must(b.t, os.Mkdir(dir, 0o700))
	x, err := lazytarget.Start(bin, dir, o)
	must(b.t, err)
	b.t.Cleanup(func() { x.Close() })
	b.t.Cleanup(x.Kill)
	return &target{x, b, name, x.PID}
}

// dumped starts a process and dumps it.
func (b *bench) dumped(name string, o lazytarget.Options) *target {
	b.t.Helper()
	x := b.start(name, o)
	b.run("dump", b.store, name, "-t", strconv.Itoa(x.pid))
	must(b.t, x.Dumped())
	return x
}

// restore restores the process; its former run must have ended.
func (x *target) restore(args ...string) (string, error) {
	x.Reset()
	stop := make(chan struct{})
	var reaping sync.WaitGroup
	reaping.Go(func() { x.Reap(stop) })
	out, err := x.b.try(append([]string{"restore", x.b.store, x.name}, args...)...)
	close(stop)
	reaping.Wait()
	x.Restored(x.pid)
	return out, err
}

// onDemand has all memory come on demand. Without it a dump that meets the process with a child just forked is
// restored with what the two share, nearly all, in its place.
const onDemand = "--copy-shared"

// mustRestore restores the process and has it check its memory once.
func (x *target) mustRestore(args ...string) string {
	x.b.t.Helper()
	out, err := x.restore(args...)
	must(x.b.t, err)
	return out
}

// checks has the process check all its memory and ends it.
func (x *target) checks() {
	x.b.t.Helper()
	must(x.b.t, x.Check(1, limit))
	x.Kill()
}

// has tells whether the store has a complete checkpoint of that name.
func (b *bench) has(name string) bool {
	b.t.Helper()
	states, err := program.States(b.t.Context(), b.store)
	must(b.t, err)
	return states[name] == index.Sealed
}
