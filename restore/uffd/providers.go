package uffd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// provider is a connected provider as the guardian sees it.
type provider struct {
	wire      *wire
	slots     *slots
	fills     sync.WaitGroup // deliveries being filled in
	delivered atomic.Bool
	lost      chan struct{} // closed when it is gone
}

// attach accepts a provider: it gets new slots and the descriptors to keep.
func (g *guardian) attach(w *wire) error {
	s, f, err := makeSlots(g.RunBytes, g.Slots)
	if err != nil {
		return err
	}
	defer f.Close()
	p := &provider{wire: w, slots: s, lost: make(chan struct{})}
	hello := packet{kind: kindHello, id: uint64(g.RunBytes), fds: []int{int(f.Fd())},
		tail: []byte(strconv.Itoa(g.keeper.pid))}
	if err := w.send(&hello); err != nil {
		s.close()
		return err
	}
	g.mu.Lock()
	g.provider = p
	last := g.last
	g.mu.Unlock()
	g.outbox.to(w)
	if last != nil {
		w.send(&packet{kind: kindDone, tail: last}) // should it be gone, its connection shows that
		return nil
	}
	filling := make(map[*process]bool)
	for _, m := range g.server.memories() {
		g.joined(m)
		filling[m.task] = true
	}
	for _, t := range g.server.processes() {
		if !filling[t] {
			w.send(&packet{kind: kindTask, fds: []int{t.pidfd}})
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tellCRIU()
	return nil
}

// provide takes what providers deliver, one after another, until the service
// has ended.
func (g *guardian) provide(ctx context.Context, cancel context.CancelCauseFunc) {
	for {
		g.mu.Lock()
		p := g.provider
		g.mu.Unlock()
		stop := g.receive(p)
		g.detach(p)
		g.mu.Lock()
		closing := g.closing
		g.mu.Unlock()
		if closing {
			return
		}
		if !g.server.connected.Load() {
			if stop {
				g.stop(errStopped)
				return
			}
			time.AfterFunc(orphanLimit, func() {
				if !g.server.connected.Load() {
					cancel(fmt.Errorf("the provider is gone and criu did not come within %v", orphanLimit))
				}
			})
		}
		if err := g.succeed(ctx); err != nil {
			g.log.Error("no provider takes over", "err", err)
			cancel(err)
			return
		}
	}
}

// receive handles a provider's packets until it is gone. It reports whether it
// asked to stop.
func (g *guardian) receive(p *provider) (stop bool) {
	p.wire.bare = true
	for {
		k, err := p.wire.receive()
		if err != nil {
			return stop
		}
		switch k.kind {
		case kindTake, kindFail, kindDelivered:
			deliver := func() {
				g.deliver(p, &k)
				g.outbox.put(packet{kind: kindAck, id: k.id})
			}
			if k.bytes() <= inlineBytes {
				deliver()
			} else {
				p.fills.Go(deliver)
			}
		case kindDrained:
			g.mu.Lock()
			if ch := g.drained[k.id]; ch != nil {
				close(ch)
				delete(g.drained, k.id)
			}
			g.mu.Unlock()
		case kindStop:
			if stop = true; !g.server.connected.Load() {
				g.stop(errStopped)
			}
		case kindAbandon:
			stop = true
			g.stop(errAbandoned)
		}
	}
}

// inlineBytes is up to how much is filled in before the next packet is looked
// at: starting another goroutine takes longer.
const inlineBytes = 128 << 10

// deliver hands what a provider brought to the server.
func (g *guardian) deliver(p *provider, k *packet) {
	switch k.kind {
	case kindTake:
		parts, err := g.parts(p, k)
		if err != nil {
			g.log.Error("the provider delivered what cannot be", "err", err)
			return
		}
		g.server.Take(parts)
		p.delivered.Store(true)
	case kindFail, kindDelivered:
		if err := g.check(k.r); err != nil {
			g.log.Error("the provider delivered what cannot be", "err", err)
			return
		}
		if k.kind == kindDelivered {
			g.server.AlreadyDelivered(k.r)
			return
		}
		g.server.Fail(k.r, errors.New(string(k.tail)))
	}
}

func (g *guardian) check(r prefetch.Range) error {
	if r.Off < 0 || r.Len <= 0 || r.Off%pageSize != 0 || r.File < 0 || r.File >= len(g.Plan.Files) {
		return fmt.Errorf("a bad range %+v", r)
	}
	return nil
}

// parts finds the contents that a packet tells of.
func (g *guardian) parts(p *provider, k *packet) ([]prefetch.Part, error) {
	if len(k.pages) != len(k.ranges) {
		return nil, fmt.Errorf("%d ranges with %d pages", len(k.ranges), len(k.pages))
	}
	parts := make([]prefetch.Part, len(k.ranges))
	for i, r := range k.ranges {
		if err := g.check(r); err != nil {
			return nil, err
		}
		parts[i].Range = r
		if k.pages[i] == zeroPage {
			continue
		}
		if parts[i].Data = p.slots.at(k.pages[i], r.Len); parts[i].Data == nil {
			return nil, fmt.Errorf("page %d for %d bytes is not in the slots", k.pages[i], r.Len)
		}
	}
	return parts, nil
}

// detach forgets a provider that is gone. Preconditions: its packets have all
// been received.
func (g *guardian) detach(p *provider) {
	g.outbox.to(nil)
	p.fills.Wait()
	g.mu.Lock()
	g.provider = nil
	if p.delivered.Load() {
		g.failures = 0
	}
	close(p.lost)
	g.mu.Unlock()
	p.wire.close()
	p.slots.close()
}

// succeed starts a successor and has it take over.
func (g *guardian) succeed(ctx context.Context) error {
	if len(g.Successor) == 0 {
		return errors.New("the provider is gone and there is no successor to start")
	}
	for {
		g.failures++
		if g.failures > maxSuccessors {
			return fmt.Errorf("%d providers in a row ended without delivering anything", maxSuccessors)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(g.failures-1) * 300 * time.Millisecond):
		}
		g.log.Warn("the provider is gone, starting a successor", "try", g.failures)
		w, err := g.spawnPatiently(ctx)
		if err == nil {
			if err = patiently(func() error { return g.attach(w) }); err != nil {
				w.close() // it ends
			}
		}
		if err != nil {
			g.log.Error("cannot start a successor", "err", err)
			continue
		}
		// Demands to the lost provider are forgotten: the tasks that wait ask again.
		g.server.wake()
		if g.server.finished.Load() {
			g.Refetch(g.server.missing())
		}
		return nil
	}
}

// spawnPatiently is spawn: for want of descriptors or of memory it is not given up at once.
func (g *guardian) spawnPatiently(ctx context.Context) (w *wire, err error) {
	err = patiently(func() error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w, err = g.spawn()
		return err
	})
	return w, err
}

func (g *guardian) spawn() (*wire, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd, _, err := startIn(cgroupSuccessors, func() *exec.Cmd {
		cmd := again(g.Successor)
		cmd.ExtraFiles = []*os.File{theirs, g.setupFile}
		cmd.Stderr = os.Stderr
		return cmd
	})
	if err != nil {
		ours.Close()
		return nil, err
	}
	if g.oomScoreAdj != "" {
		// It is not as precious as this process. Best effort.
		os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte(g.oomScoreAdj), 0)
	}
	go cmd.Wait() // reaps it; its end shows on the connection
	return newWire(ours)
}
