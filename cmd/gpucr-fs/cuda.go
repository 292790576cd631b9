package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/cuda/freeze"
	"github.com/gpucr/gpucr-fs/park"
	"github.com/gpucr/gpucr-fs/park/inject"
	"github.com/gpucr/gpucr-fs/restore/procfs"
	"github.com/gpucr/gpucr-fs/restore/touch"
)

// gpuTimeout is how long a dump waits for the end of GPU work, unless it is told.
const gpuTimeout = 10 * time.Second

// nvidiaFlags say what dump and restore do about NVIDIA GPUs.
type nvidiaFlags struct {
	cudaFlags
	off     bool
	keep    bool // what forked children have inherited
	record  bool
	timeout time.Duration
	devices string
}

func (f *nvidiaFlags) addDump(fl *pflag.FlagSet) {
	f.add(fl)
	fl.BoolVar(&f.off, "no-gpu", false, "leave NVIDIA GPUs to CRIU's cuda_plugin")
	fl.BoolVar(
		&f.keep, "keep-inherited", false,
		"let forked children of CUDA processes keep the GPU devices that they inherited and cannot use",
	)
	fl.DurationVar(
		&f.timeout, "gpu-timeout", gpuTimeout, "how long to wait for GPU work to end before the dump fails",
	)
}

func (f *nvidiaFlags) addRestore(fl *pflag.FlagSet) {
	f.add(fl)
	fl.BoolVar(&f.off, "no-gpu", false, "leave NVIDIA GPUs to CRIU's cuda_plugin")
	fl.BoolVar(
		&f.record, "record-gpu", false,
		"in profiles of CUDA processes, also record what the driver reads after they resume (slower)",
	)
	fl.StringVar(
		&f.devices, "device-map", "", "restore on other NVIDIA GPUs: `OLD-UUID=NEW-UUID,...` (driver 580 or newer)",
	)
}

// nvidia moves the GPU state of processes into their memory, which criu sees, and back.
type nvidia struct {
	flags   *nvidiaFlags
	pairs   []cuda.Pair
	stopped int         // processes that Prepare has stopped
	runs    []int       // those that do not stand still
	asleep  []int       // processes of the tree that were stopped before, by the pids that they know
	used    []cuda.UUID // GPUs that they use; none where that is not known
	over    func() error
	warming sync.WaitGroup

	mu     sync.Mutex
	client *cuda.Client // nil before it was needed
}

// cudaImage is a file beside criu's images that tells what a restore has to find.
const cudaImage = "gpucr-cuda.json"

// cudaNote is its content.
type cudaNote struct {
	Processes int `json:"processes"` // that use CUDA
	// processes that somebody had stopped, by the pids that they know
	Stopped []int         `json:"stopped,omitempty"`
	GPUs    []cuda.Device `json:"gpus,omitempty"` // that the driver showed
	Used    []cuda.UUID   `json:"used,omitempty"` // those that the processes used; none where that is not known
}

// open gives what dump and restore need for NVIDIA GPUs, nil when they are to be left alone, and what ends it: what
// Prepare stopped and nobody undid then goes on, unless CRIU has ended it.
func (f *nvidiaFlags) open() (*nvidia, func() error, error) {
	if f.off {
		return nil, func() error { return nil }, nil
	}
	pairs, err := cuda.ParsePairs(f.devices)
	if err != nil {
		return nil, nil, usage(err, "")
	}
	n := &nvidia{flags: f, pairs: pairs}
	return n, n.close, nil
}

// warm loads the driver in the background where the machine has one, so that it is ready when the restored processes
// need it.
func (n *nvidia) warm() {
	n.warming.Go(func() {
		if n.flags.present() {
			_, _ = n.start() // asked for again, and the error told, where it is needed
		}
	})
}

func (n *nvidia) start() (*cuda.Client, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client == nil {
		c, err := n.flags.client(slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		n.client = c
	}
	return n.client, nil
}

func (n *nvidia) close() error {
	n.warming.Wait()
	if n.client == nil {
		return nil
	}
	return n.client.Close()
}

// stalled is how long processes that give memory back may have given nothing back, and givenBack is how much counts as
// something, in bytes.
const (
	stalled   = 5 * time.Second
	givenBack = 16 << 20
)

// awaitRelease waits until root and its descendants have given back the memory that their VRAM was in, which they do
// for a while after a restore (inject.NewLater). They would be dumped with it. It gives up on processes that are
// stopped, and when they have stalled.
func (n *nvidia) awaitRelease(ctx context.Context, root int) error {
	if n == nil {
		return nil
	}
	giving, _ := cuda.Tree(root) // why there is none is told by the preflight
	for least, late := int64(math.MaxInt64), (time.Time{}); ; {
		giving = slices.DeleteFunc(giving, func(pid int) bool {
			return !inject.GivingBack(pid) || freeze.Stopping(pid)
		})
		left := int64(0)
		for _, pid := range giving {
			left += procfs.Memory(pid)
		}
		if left <= least-givenBack {
			least, late = left, time.Now().Add(stalled)
		}
		if len(giving) == 0 || time.Now().After(late) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Prepare moves the VRAM of root and its descendants into their memory.
func (n *nvidia) Prepare(ctx context.Context, root int) (func(context.Context) error, error) {
	c, err := n.needed(root)
	if c == nil || err != nil {
		return nil, err
	}
	tree, err := cuda.Tree(root)
	if err != nil {
		return nil, err
	}
	for _, pid := range tree {
		if freeze.Stands(pid) {
			n.asleep = append(n.asleep, park.Innermost(pid))
		}
	}
	s, err := c.Suspend(ctx, root, n.flags.timeout, n.runs...)
	if err != nil {
		if cuda.CodeOf(err) == cuda.CodeNotReady {
			return nil, &codeError{exitError, "try again, or with a longer --gpu-timeout", err}
		}
		return nil, err
	}
	if n.stopped = len(s.Processes()); n.stopped == 0 {
		return nil, nil
	}
	n.over = s.Over
	return func(context.Context) error { return s.Undo() }, nil
}

// note writes into an image directory what a restore has to find.
func (n *nvidia) note(ctx context.Context, images string) error {
	if n.stopped == 0 {
		return nil
	}
	info, _ := n.client.Info(ctx) // only a restore on other GPUs would miss it
	text, err := json.Marshal(cudaNote{Processes: n.stopped, Stopped: n.asleep, GPUs: info.Devices, Used: n.used})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(images, cudaImage), append(text, '\n'), 0o644)
}

// readNote gives what note wrote; nothing where no process used CUDA.
func readNote(images string) (want cudaNote, err error) {
	text, err := os.ReadFile(filepath.Join(images, cudaImage))
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return want, fmt.Errorf("%s: %w", cudaImage, err)
	}
	return want, nil
}

// moves says which GPUs stand in for those of the checkpoint: the ones that were asked for, else, where some are not
// shown, others of their kind.
func (n *nvidia) moves(ctx context.Context, was cudaNote) []cuda.Pair {
	if len(n.pairs) > 0 || len(was.GPUs) == 0 {
		return n.pairs
	}
	c, err := n.start()
	if err != nil {
		return nil // Resume tells
	}
	info, err := c.Info(ctx)
	if err != nil {
		return nil
	}
	return cuda.StandIns(was.GPUs, was.used(), info.Devices)
}

// used lists the GPUs that the processes used: all, where that is not known.
func (was *cudaNote) used() []cuda.UUID {
	if len(was.Used) > 0 {
		return was.Used
	}
	var used []cuda.UUID
	for _, d := range was.GPUs {
		used = append(used, d.UUID)
	}
	return used
}

// Resume moves the VRAM of root and its descendants back, and tells whether there was any. It fails when it finds fewer
// processes than were dumped: the others would wait for their GPU for ever.
func (n *nvidia) Resume(ctx context.Context, root int, want cudaNote, pairs []cuda.Pair) (bool, error) {
	var procs []cuda.Process
	c, err := n.needed(root)
	if c != nil && err == nil {
		procs, err = c.Resume(ctx, root, pairs)
	}
	if err == nil && len(procs) < want.Processes {
		err = fmt.Errorf("%d processes used CUDA, and the driver knows %d of them", want.Processes, len(procs))
	}
	return len(procs) > 0, err
}

// bringTime is how long no page may come of memory that is waited for.
const bringTime = 30 * time.Second

// bring waits until all memory of a tree is there.
func bring(root int) error {
	tree, err := cuda.Tree(root)
	if err != nil {
		return err
	}
	for _, pid := range tree {
		if err := touch.All(pid, bringTime); err != nil {
			return err
		}
	}
	return nil
}

// needed gives the client when a process of the tree uses CUDA, nil when none does.
func (n *nvidia) needed(root int) (*cuda.Client, error) {
	used, err := cuda.Uses(root)
	if err != nil || !used {
		return nil, err
	}
	c, err := n.start()
	if errors.Is(err, cuda.ErrNoDriver) {
		return nil, fmt.Errorf("process %d or a descendant uses CUDA: %w", root, err)
	}
	return c, err
}

// stopTree stops the processes of a tree again that were continued with their GPUs.
func stopTree(root int) error {
	tree, err := cuda.Tree(root)
	for _, pid := range tree {
		err = errors.Join(err, freeze.Stop(pid))
	}
	return err
}

// continueParents continues restored processes that are stopped because a child of theirs was, which has its GPU or
// waits for it.
func continueParents(root int, note cudaNote) error {
	tree, err := cuda.Tree(root)
	if err != nil {
		return err
	}
	return note.goOn(tree)
}

// goOn continues those of some restored processes that are stopped, and were not when they were dumped.
func (n cudaNote) goOn(pids []int) error {
	for _, pid := range pids {
		if freeze.Stands(pid) && !slices.Contains(n.Stopped, park.Innermost(pid)) {
			if err := freeze.Continue(pid); err != nil {
				return err
			}
		}
	}
	return nil
}

// forkTime is how long a fork may go on in a process that has been told to stop.
const forkTime = 2 * time.Millisecond

// endTime is how long it is waited for the end of processes that were killed. Zombies whose parent does not reap them
// stay.
const endTime = time.Second

// endTree kills a process and its descendants. They are stopped first, so that none forks meanwhile; a fork that was
// under way shows a little later.
func endTree(root int) error {
	var all []int
	var unseen error // of the last look
	for quiet := 0; quiet < 2; quiet++ {
		if quiet > 0 {
			time.Sleep(forkTime)
		}
		tree, err := cuda.Tree(root)
		if errors.Is(err, syscall.ESRCH) {
			break
		}
		if unseen = err; err != nil {
			unseen = fmt.Errorf("descendants of process %d may go on, end them by hand: %w", root, err)
			tree = []int{root}
		}
		for _, pid := range tree {
			if !slices.Contains(all, pid) {
				all = append(all, pid)
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				quiet = -1
			}
		}
	}
	errs := []error{unseen}
	for _, pid := range all {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("end process %d: %w", pid, err))
		}
	}
	// A restore that follows needs their pids. Their parents reap them, and this process reaps those that became its
	// children.
	for end := time.Now().Add(endTime); len(all) > 0 && time.Now().Before(end); time.Sleep(forkTime) {
		all = slices.DeleteFunc(all, func(pid int) bool {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
		})
	}
	return errors.Join(errs...)
}
