package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/restore/diagnosis"
	"github.com/gpucr/gpucr-fs/restore/procfs"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// restoring is one run of gpucr-fs restore.
type restoring struct {
	a          *app
	criu       criuFlags
	args       restore.Args
	nvidia     nvidiaFlags
	copyShared bool    // each process gets its own copy of shared memory
	gpu        *nvidia // nil: GPUs are not this program's business
	timeline   restore.Timeline
	marks      []restore.Mark
	pid        int
	runs       bool   // the processes, with all that they need
	allFirst   bool   // all memory is to be there before the GPUs' state is
	own        bool   // in a pid namespace of its own
	inside     int    // the pid there
	pidfile    string // for the pid here, with own
	copies     int
	copy       int         // the number of this one; 0 where there is no other
	turn       *sync.Mutex // of copies that must not run criu at once
	events     *vramEvents // of AMD GPUs
	freed      bool        // ports have been freed for it once
	container  *container  // what an OCI runtime restores; nil where this program runs criu
}

func (a *app) restoreCmd() *cobra.Command {
	r := restoring{a: a}
	var wait bool
	var rate bytesValue
	var file, verify, when string
	c := &cobra.Command{
		Use:   "restore STORE NAME [-- CRIU OPTIONS]",
		Short: "bring processes back; their memory follows",
		Long: `Restore brings the processes of checkpoint NAME back with criu, and returns when they run. Their memory
follows: what they touch first comes first, and the rest comes in the background. The store's daemon brings it;
restore starts one if none runs, and it ends when its work is done. The first restore of a checkpoint records the
order of first touches as its profile. Later restores follow it.

CUDA processes that were dumped by gpucr-fs dump get their GPU memory back while their own memory still follows;
--no-gpu leaves that to criu's cuda_plugin.

Memory that processes share because one forked the others is shared again, and it is there when they run.
--copy-shared gives each process a copy.

With --own-pids the processes get a pid namespace of their own. Use it when their pids, sessions or groups are taken,
for example by the processes that were dumped. Inside they have their old pids and see no other processes. Outside
they have new pids; restore prints these, and pidfiles contain them. The processes also have their own /proc and
mounts. They share everything else with this machine: files, ports and sockets. Their namespace has a first process,
gpucr-init. It passes signals on to the first restored process, and ends with the exit status of that process when
all have ended. kill -9 of gpucr-init ends all of them. gpucr-fs dump -t takes the pid that restore prints.

--copies N restores N copies at once, each with --own-pids. Each copy has descriptors, sockets and memory of its own.
Each copy succeeds or fails by itself; if some fail, the exit code is 3. All copies write to the same files, like a
program that was started N times. Only one copy can have a port or a unix socket: the first copy gets it, and the
others fail. Files of --timeline, --pidfile and --log-file get the number of the copy at the end of their names.

With --wait, restore returns when all memory is there. The timeline shows when each step happened. --timeline FILE
writes it to FILE.json, draws it in FILE.svg, and waits for all memory.

Options for criu follow --, as criu itself takes them. Memory that cannot be read is never wrong: touching it raises
SIGBUS. If the daemon is killed, another one takes its place. If that fails too, the processes are ended.`,
		Example: "  gpucr-fs restore store/ web-3\n" +
			"  gpucr-fs restore --copies 4 store/ model\n" +
			"  gpucr-fs restore --wait --timeline web-3 store/ web-3 -- --tcp-established --shell-job",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			r.timeline.Started = time.Now()
			if args, r.args, err = criuArgs(cmd, args, usageNames(cmd.Use)); err != nil {
				return err
			}
			if cmd.Flags().Changed("verify-vram") {
				if err := setVerify(verify); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("vram") {
				if err := setVRAM(when); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("copies") {
				r.own = true
				if err := r.copyArgs(); err != nil {
					return err
				}
			}
			if r.own {
				if r.pidfile, err = ownArgs(&r.args); err != nil {
					return err
				}
			}
			return r.run(cmd.Context(), args[0], args[1], int64(rate), wait || file != "", file)
		},
	}
	f := c.Flags()
	f.BoolVar(&wait, "wait", false, "return when all memory is there")
	f.StringVar(&file, "timeline", "", "write the timeline to `FILE`.json and FILE.svg; waits")
	f.BoolVar(
		&r.copyShared,
		"copy-shared",
		false,
		"give each process a copy of the memory that it shares with the one it was forked from: they run sooner, "+
			"and take more memory",
	)
	f.Var(&rate, "prefetch-rate", "bytes a second fetched ahead of need (default: no bound)")
	f.StringVar(
		&verify,
		"verify-vram",
		"",
		"read back and compare the memory of AMD GPUs before the processes run; `MODE` is all (if left out), sample "+
			"(the default) or none",
	)
	f.StringVar(
		&when,
		"vram",
		"",
		"when processes with AMD GPUs run; `WHEN` is gate, once all their VRAM is there, or lazy, once the part is "+
			"there that their CPU may touch; their queues follow (default gate, or $GPUCR_VRAM)",
	)
	f.Lookup("verify-vram").NoOptDefVal = vram.VerifyAll.String()
	f.BoolVar(&r.own, "own-pids", false, "restore in a pid namespace of its own, where no pid is taken")
	f.IntVar(&r.copies, "copies", 1, "restore `N` copies side by side, each with --own-pids")
	r.criu.add(f)
	r.nvidia.addRestore(f)
	return c
}

// verifyVar tells the plugin's helper, by way of criu, how much to verify.
const verifyVar = "GPUCR_VERIFY"

func setVerify(mode string) error {
	if _, err := vram.ParseMode(mode); err != nil || mode == "" {
		return usage(
			fmt.Errorf("--verify-vram=%s is none of all, sample, none", mode),
			"--verify-vram alone compares all",
		)
	}
	return os.Setenv(verifyVar, mode)
}

func (r *restoring) run(ctx context.Context, store, name string, rate int64, wait bool, file string) (err error) {
	if err := r.criu.options(r.a, r.args).Validate(); err != nil {
		return err
	}
	gpu, done, err := r.nvidia.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	if gpu != nil {
		gpu.warm() // while the rest is prepared
		r.gpu = gpu
	}
	if r.copies > 1 {
		return r.runCopies(ctx, store, name, rate, wait, file)
	}
	st, err := r.one(ctx, store, name, rate, wait, file)
	if err != nil {
		return err
	}
	if err := r.a.done(result{r.timeline, st}, func(w io.Writer) { r.text(w, st, wait) }); err != nil {
		return err
	}
	return lost(st)
}

// lost tells what of a restore's memory could not be had.
func lost(st restores.Status) error {
	if len(st.Killed) > 0 {
		return fmt.Errorf("processes %v could not be given their memory and were ended", st.Killed)
	}
	if len(st.Poisoned) > 0 {
		return &codeError{exitPartial, "gpucr-fs verify STORE names what is damaged",
			fmt.Errorf("%d parts of memory cannot be read and raise SIGBUS: %s", len(st.Poisoned), st.Poisoned[0])}
	}
	return nil
}

// one restores once.
func (r *restoring) one(
	ctx context.Context, store, name string, rate int64, wait bool, file string,
) (st restores.Status, err error) {
	dir, start, err := r.a.startDaemon(store, true)
	if err != nil {
		return st, err
	}
	log, remove, err := tempFile("restore.log")
	if err != nil {
		return st, err
	}
	defer remove()
	if r.events, err = listenVRAM(); err != nil {
		return st, err
	}
	defer func() { err = errors.Join(err, r.events.close()) }()
	// CRIU is loaded while the daemon is started and prepares.
	var next *loading
	if r.container == nil {
		next = r.load()
	}
	defer func() { next.drop() }()
	title := "restore"
	if r.copy > 0 {
		title = "" // one bar is no measure of several
	}
	if r.args.Has("shell-job") {
		title = "" // the terminal is the job's
	}
	p := r.a.progress(title)
	var namespace func() uint64
	if r.own {
		namespace = func() uint64 {
			if next == nil {
				next = r.load()
			}
			return next.namespace()
		}
	}
	st, err = client.RestoreFrom(ctx, dir, client.RestoreOptions{
		Checkpoint: name, Work: r.args.Work, Rate: rate, RecordGPU: r.nvidia.record,
		Wait: wait, CopyShared: r.copyShared, Copies: r.copies, Early: r.container == nil && r.args.Holds(),
		PIDNamespace: namespace, Start: start, Progress: p.tell,
		Again: func(err error) { r.a.note("%v; trying again", oneLine(err.Error())) },
		Run: func(ctx context.Context, prepared talk.Prepared) error {
			if r.container != nil {
				return r.inContainer(ctx, prepared)
			}
			if next == nil {
				next = r.load()
			}
			l := <-next.one
			next = nil
			return r.attempt(ctx, l, prepared, log)
		},
	})
	p.close()
	if err != nil && ctx.Err() != nil && r.runs {
		return st, &codeError{exitError, "gpucr-fs stats STORE shows how much is still to come",
			fmt.Errorf("interrupted: process %d runs on, and the daemon brings the rest of its memory", r.pid)}
	}
	if err != nil {
		return st, r.container.lookedFor(err)
	}
	if wait {
		if err := r.events.wait(ctx); err != nil {
			return st, fmt.Errorf("wait for the GPUs' memory: %w", err)
		}
		if err := r.events.lost(); err != nil {
			return st, err
		}
	}
	r.finish(st)
	if file != "" {
		if err := r.timeline.Write(file); err != nil {
			return st, err
		}
	}
	return st, nil
}

// result is what --json prints.
type result struct {
	Timeline restore.Timeline `json:"timeline"`
	Status   restores.Status  `json:"status"`
}

// restore runs CRIU, and what has to follow before the processes may go on.
func (r *restoring) restore(ctx context.Context, c *restore.CRIU, p talk.Prepared, log string) error {
	r.marks = []restore.Mark{{Name: restore.MarkPrepared, At: time.Now()}}
	if p.AMDGPU {
		if dir := amdgpuPlugins(); dir != "" {
			if err := c.SetDefault("libdir", dir); err != nil {
				return err
			}
		}
	}
	// The images are gone with the daemon, the processes are not.
	note, err := readNote(p.Images)
	if err != nil {
		return err
	}
	rings, err := readRings(p.Images)
	if err != nil {
		return err
	}
	if err := r.pidsFree(ctx, p.Images); err != nil {
		return err
	}
	if err := r.contested(p.Images); err != nil {
		return err
	}
	if note.Processes > 0 {
		c.Keep()
	}
	defer r.takeTurn(p.Images)()
	if p.Served != nil {
		c.Hold(p.Served)
	}
	read, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() { restore.Preread(read, p.Images) })
	pid, inside, err := c.Restore(ctx, p.Images, p.Work, log)
	stop()
	reading.Wait()
	r.marks = append(r.marks, c.Marks()...)
	if err != nil {
		return err
	}
	if r.pid = pid; r.own {
		r.inside = inside
	}
	if err := r.wake(ctx, pid, note); err != nil {
		return errors.Join(err, endTree(pid))
	}
	r.marks = append(r.marks, restore.Mark{Name: restore.MarkResume, At: time.Now()})
	if err := r.ringsBack(pid, rings); err != nil {
		return errors.Join(err, endTree(pid))
	}
	if r.gpu != nil {
		used, err := r.resumeGPUs(ctx, pid, note)
		if err != nil {
			return err
		}
		if used {
			r.marks = append(r.marks, restore.Mark{Name: restore.MarkGPUReady, At: time.Now()})
		}
	}
	return nil
}

// wake lets processes run that stand still since their GPUs were taken.
func (r *restoring) wake(ctx context.Context, pid int, note cudaNote) error {
	if note.Processes == 0 {
		return nil
	}
	if r.gpu == nil {
		r.a.note("CUDA processes are stopped: continue them (kill -CONT) when they have their GPUs")
		return nil
	}
	if r.args.Has("leave-stopped") {
		return nil
	}
	c, err := r.gpu.start()
	if err != nil {
		return err
	}
	others, err := c.Wake(ctx, pid)
	if err != nil {
		return err
	}
	return note.goOn(others) // parents whose child was stopped
}

// resumeGPUs gives the processes their GPUs back. Memory that they have registered with the driver (cudaHostRegister)
// has to be there then: the driver cannot wait for it, and after one failure it serves the process no more. Nothing
// tells which memory that is, so the restore begins anew then, and brings all memory first.
func (r *restoring) resumeGPUs(ctx context.Context, pid int, note cudaNote) (used bool, err error) {
	if r.allFirst && note.Processes > 0 {
		err = bring(pid)
	}
	if err == nil {
		pairs := r.gpu.moves(ctx, note)
		for _, p := range pairs {
			if p.From != p.To && slices.Contains(note.used(), p.From) && r.copy < 2 {
				r.a.note("%v stands in for %v", p.To, p.From)
			}
		}
		used, err = r.gpu.Resume(ctx, pid, note, pairs)
	}
	switch {
	case note.Processes == 0 && (err == nil || over(pid)): // one that has ended needs no GPU
		return used, nil
	case err == nil && r.args.Has("leave-stopped"):
		return used, stopTree(pid)
	case err == nil:
		return used, continueParents(pid, note) // who has heard only now that its child was stopped
	}
	again := cuda.CodeOf(err) == cuda.CodeInvalidValue && !r.allFirst
	// Its memory may all be there already, and nobody else end it then.
	err = errors.Join(fmt.Errorf("give the gpus their state back: %w", err), endTree(pid))
	if again {
		r.allFirst = true
		err = fmt.Errorf("%w, %w with all memory there first", err, client.ErrAgain)
	}
	return false, err
}

func criuSays(err error, words string) bool {
	var f *diagnosis.Failure
	return errors.As(err, &f) && f.Says(words)
}

// over tells whether a process is known to have ended.
func over(pid int) bool {
	stat, err := procfs.ReadStat(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && procfs.Ended(stat)
}

// finish completes the timeline with what the daemon knows.
func (r *restoring) finish(st restores.Status) {
	t := &r.timeline
	t.Checkpoint, t.PID, t.Inside, t.Bytes, t.Faults, t.Profile = st.Checkpoint,
		r.pid, r.inside, st.Bytes, st.Faults, st.Profile
	t.Add(r.marks...)
	t.Add(r.events.marks()...)
	t.Add(
		restore.Mark{Name: restore.MarkFirstFault, At: st.FirstFault},
		restore.Mark{Name: restore.MarkHotDone, At: st.HotDone},
		restore.Mark{Name: restore.MarkResident, At: st.Resident},
	)
}

// rest tells how much of the memory is still to come. A small process may have all of it before it runs.
func rest(st restores.Status, wait bool) string {
	switch {
	case wait || st.Missing == 0:
		return "all memory is there"
	case st.Adopted: // nobody has asked the daemon that went on
		return fmt.Sprintf("up to %s follow; the daemon was killed meanwhile, another goes on", size(st.Missing))
	}
	return size(st.Missing) + " follow"
}

func (r *restoring) text(w io.Writer, st restores.Status, wait bool) {
	defer func() {
		if over(r.pid) {
			fmt.Fprintf(w, "process %s has ended meanwhile\n", r.who())
		}
	}()
	fmt.Fprintf(w, "restored %s as process %s\n", dash(r.timeline.Checkpoint), r.who())
	for _, m := range r.timeline.Marks {
		fmt.Fprintf(w, "%8.1f ms\t%s\n", m.Ms, m.Name)
	}
	if !wait {
		fmt.Fprintln(w, rest(st, wait))
		return
	}
	if st.Adopted && st.Resident.IsZero() {
		fmt.Fprintln(w, "the daemon was killed meanwhile; the one that went on has ended and cannot be asked")
		return
	}
	b := st.Bytes
	fmt.Fprintf(
		w, "images %s, demand %s, hot set %s, sweep %s; zero %s; %d faults\n", size(b.Images), size(b.Demand),
		size(b.Hot), size(b.Sweep), size(b.Zero), st.Faults,
	)
	if st.Adopted {
		fmt.Fprintln(w, "the daemon was killed meanwhile; another went on")
	}
}
