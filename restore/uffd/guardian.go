package uffd

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// Descriptors that guardians and successors are started with.
const (
	fdWire  = 3 // the connection to each other
	fdSetup = 4 // a memfd with a gob of setup
)

// maxSuccessors is how many successors in a row may end without having
// delivered anything.
const maxSuccessors = 3

// orphanLimit is how long a guardian without its first provider waits for CRIU.
const orphanLimit = 30 * time.Second

var (
	errStopped   = errors.New("stopped before criu came")
	errAbandoned = errors.New("the restore was given up")
)

// setup is what a guardian and the successors it starts have to know.
type setup struct {
	Plan      *Plan
	Dir       string // where the socket goes, "" where the provider has made it
	Successor []string
	RunBytes  int64
	Slots     int
}

// outcome is how a guardian's service ended.
type outcome struct {
	Report Report
	Err    string
	// Restore: CRIU gave up.
	Restore bool
}

// GuardianMain is the life of a guardian process: the program that calls
// StartGuardian runs it when it finds itself started with
// GuardianOptions.Command. It returns when all memory is resident or nobody
// needs it any more, with what went wrong.
//
// Terminal signals do not end a guardian: tasks depend on it.
func GuardianMain() error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	// Nearly all its threads are in the kernel at a time, filling or waiting:
	// one that returns must find a processor at once.
	runtime.GOMAXPROCS(max(8, 2*runtime.NumCPU()))
	// The OOM killer is to take memory from neither the guardian nor the keeper: only this value is spared when the
	// kernel kills a whole cgroup for lack of memory. Best effort.
	const oomScoreAdj = "/proc/self/oom_score_adj"
	before, _ := os.ReadFile(oomScoreAdj)
	os.WriteFile(oomScoreAdj, []byte("-1000"), 0)

	k, err := startKeeper()
	if err != nil {
		return err
	}
	defer k.end()
	setupFile := os.NewFile(fdSetup, "setup")
	defer setupFile.Close()
	w, err := newWire(os.NewFile(fdWire, "provider"))
	if err != nil {
		return err
	}
	sock, err := awaitBegin(w)
	if err != nil {
		w.close()
		if errors.Is(err, io.EOF) {
			return nil // nobody is restored after all
		}
		return err
	}
	st, err := readSetup(setupFile)
	if err != nil {
		w.close()
		if sock != nil {
			sock.refuse()
		}
		return err
	}
	g := &guardian{setup: st, setupFile: setupFile, keeper: k, outbox: newOutbox(),
		oomScoreAdj: string(bytes.TrimSpace(before))}
	log := slog.New(slog.NewTextHandler(logWriter{g}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g.log = log
	if sock != nil {
		g.server = newServer(Options{Plan: st.Plan, Logger: log}, sock)
	} else {
		g.server, err = Listen(Options{Dir: st.Dir, Plan: st.Plan, Logger: log})
	}
	if err != nil {
		w.send(&packet{kind: kindDone, tail: encodeOutcome(err, Report{})})
		w.close()
		return err
	}
	defer g.server.Close()
	g.server.watcher = g
	return g.run(w)
}

// awaitBegin returns when the setup is there, with the socket that came before it, nil where none came. Where the
// provider ends without a beginning so does the socket: CRIU, which was not to let tasks run yet, fails and ends them.
func awaitBegin(w *wire) (sock *socket, err error) {
	for {
		p, err := w.receive()
		if err == nil && p.kind == kindListen && sock == nil {
			if sock, err = handedSocket(&p); err == nil {
				sock.expect()
				continue
			}
		}
		if err != nil && sock != nil {
			w.close() // before CRIU's end: it may wait for who waits for this
			sock.refuse()
		}
		return sock, err
	}
}

func readSetup(f *os.File) (*setup, error) {
	var st setup
	fi, err := f.Stat()
	if err == nil {
		err = gob.NewDecoder(io.NewSectionReader(f, 0, fi.Size())).Decode(&st)
	}
	if err != nil {
		return nil, fmt.Errorf("read the guardian's setup: %w", err)
	}
	if st.Plan == nil {
		return nil, errors.New("read the guardian's setup: no plan")
	}
	return &st, st.Plan.Validate()
}

// guardian runs a Server whose supplier is another process, the provider, and
// replaces that process when it ends.
type guardian struct {
	*setup
	setupFile *os.File
	// oomScoreAdj is what this process was started with, for its successors.
	oomScoreAdj string
	keeper      *keeper
	server      *Server
	log         *slog.Logger
	outbox      *outbox

	mu       sync.Mutex
	provider *provider
	drains   uint64
	drained  map[uint64]chan struct{}
	failures int // successors in a row that delivered nothing
	closing  bool
	last     []byte   // the outcome, for a provider that comes when all is over
	criu     *process // a handle of CRIU's while it waits for its tasks, else nil
	stop     context.CancelCauseFunc
}

// run serves with w as the first provider.
func (g *guardian) run(w *wire) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	g.drained = make(map[uint64]chan struct{})
	g.stop = cancel
	if err := g.attach(w); err != nil {
		w.close()
		if g.server.sock.came != nil {
			g.server.sock.refuse()
		}
		return err
	}
	var providers sync.WaitGroup
	providers.Go(func() { g.provide(ctx, cancel) })
	reports := make(chan struct{})
	providers.Go(func() { g.report(reports) })

	err := g.server.Serve(ctx, g)
	g.keeper.end() // nothing that has to be kept is left
	g.watched(nil)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	close(reports)
	last := encodeOutcome(err, g.server.Report())
	g.mu.Lock()
	g.closing, g.last = true, last
	p := g.provider
	g.mu.Unlock()
	if p != nil {
		g.outbox.flush()
		p.wire.send(&packet{kind: kindDone, tail: last})
		// It closes its end when it has read that, at the latest on exit.
	}
	providers.Wait()
	g.outbox.close()
	if err == nil {
		g.server.Collapse(context.Background())
	}
	return err
}

func encodeOutcome(err error, r Report) []byte {
	o := outcome{Report: r, Restore: errors.Is(err, ErrRestore)}
	if err != nil {
		o.Err = err.Error()
	}
	b, _ := json.Marshal(o)
	for len(b) > maxTail && len(o.Report.Poisoned)+len(o.Report.Killed) > 0 {
		o.Report.Poisoned = o.Report.Poisoned[:len(o.Report.Poisoned)/2]
		o.Report.Killed = o.Report.Killed[:len(o.Report.Killed)/2]
		b, _ = json.Marshal(o)
	}
	return b
}

// report tells the provider now and then how far things are.
func (g *guardian) report(stop <-chan struct{}) {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
			g.outbox.put(packet{kind: kindReport, tail: encodeOutcome(nil, g.server.Report())})
		}
	}
}

// joined passes a memory's descriptors to the provider for keeping: should the
// guardian be killed, faults of the process wait instead of reading zeros. That
// of a forked child has nobody else until then, and the child runs already: it
// does not go through the outbox unless it has to.
func (g *guardian) joined(m *memory) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return
	}
	p := packet{kind: kindMemory, id: m.id, fds: []int{m.fd}}
	if m.task != nil {
		p.fds = append(p.fds, m.task.pidfd)
		g.keeper.task(m.task.pidfd)
	}
	g.mu.Lock()
	to := g.provider
	g.mu.Unlock()
	if to != nil && to.wire.sendNow(&p) == nil {
		return
	}
	for i, fd := range p.fds {
		// Sending takes place later, when these may be closed.
		d, err := duplicate(fd)
		if err != nil {
			g.log.Warn("cannot keep a descriptor twice", "task", m.name, "err", err)
			closeAll(p.fds[:i])
			return
		}
		p.fds[i] = d
	}
	g.outbox.put(p)
}

func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

// watched passes CRIU's handle to the provider: should the guardian be killed, the provider ends the tasks, and a CRIU
// that waits for them.
func (g *guardian) watched(criu *process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.criu != nil {
		g.criu.close()
		g.criu = nil
		g.outbox.put(packet{kind: kindCRIU})
	}
	if criu == nil {
		return
	}
	d, err := duplicate(criu.pidfd)
	if err != nil {
		g.log.Warn("cannot keep criu's handle", "err", err)
		return
	}
	g.criu = &process{criu.pid, d}
	g.tellCRIU()
}

// tellCRIU gives the provider CRIU's handle, if there is one. Preconditions: mu is held.
func (g *guardian) tellCRIU() {
	if g.criu == nil {
		return
	}
	if d, err := duplicate(g.criu.pidfd); err == nil {
		g.outbox.put(packet{kind: kindCRIU, fds: []int{d}})
	}
}

func (g *guardian) left(m *memory) { g.outbox.put(packet{kind: kindLeft, id: m.id}) }

// Demand, Sweep, Refetch and Drain make the guardian its server's Supplier. They
// do not block, but for Drain.
func (g *guardian) Demand(r prefetch.Range, again bool) {
	g.outbox.put(packet{kind: kindDemand, r: r, flag: again})
}

func (g *guardian) Sweep(ranges []prefetch.Range) { g.outbox.putRanges(kindSweep, ranges) }

func (g *guardian) Refetch(ranges []prefetch.Range) { g.outbox.putRanges(kindRefetch, ranges) }

func (g *guardian) Drain(ctx context.Context) error {
	for {
		g.mu.Lock()
		p := g.provider
		g.drains++
		id, ch := g.drains, make(chan struct{})
		g.drained[id] = ch
		g.mu.Unlock()
		if p == nil {
			// Between two providers.
			select {
			case <-time.After(5 * time.Millisecond):
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		g.outbox.put(packet{kind: kindDrain, id: id})
		select {
		case <-ch:
			return nil
		case <-p.lost:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// logWriter sends log lines to the provider, to the guardian's own standard
// error when there is none.
type logWriter struct{ g *guardian }

func (w logWriter) Write(b []byte) (int, error) {
	if !w.g.outbox.put(packet{kind: kindLog, tail: slices.Clone(b[:min(len(b), maxTail)])}) {
		return os.Stderr.Write(b)
	}
	return len(b), nil
}
