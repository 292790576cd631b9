package feed

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/uffd"
)

// Early is what CRIU can begin with while Start goes on.
type Early struct {
	// Inherited is what Feed.Inherited will give.
	Inherited map[string][]byte
	// Touch is Feed.Touch.
	Touch func(name string, off, n int64)
}

// early is the call of Options.Early.
type early struct {
	o        *Options
	recorder *prefetch.Recorder
	called   sync.WaitGroup
	begun    bool
	err      error // once called is done
}

// begin calls it, the first time. The caller waits with end.
func (e *early) begin(inherited map[string][]byte) {
	if e.o.Early == nil || e.begun {
		return
	}
	e.begun = true
	what := Early{Inherited: inherited, Touch: func(name string, off, n int64) { touch(e.recorder, name, off, n) }}
	e.called.Go(func() { e.err = e.o.Early(what) })
}

// end waits for the call.
func (e *early) end() error {
	e.called.Wait()
	return e.err
}

// Start reads the images and starts a guardian. When it returns, criu restore --lazy-pages may be started; with
// Options.Early before.
func Start(o Options) (_ *Feed, err error) {
	err = o.Validate()
	if err == nil {
		err = uffd.MayServe(o.Work)
	}
	if err != nil {
		if o.Spare != nil {
			o.Spare.Close()
		}
		return nil, err
	}
	guardian, err := summon(&o)
	if err != nil {
		return nil, err
	}
	e := &early{o: &o}
	if o.Record {
		e.recorder = prefetch.NewRecorder()
	}
	// What Early has begun is over when Start returns.
	defer func() {
		if eerr := e.end(); err != nil && eerr != nil && !errors.Is(err, eerr) {
			err = errors.Join(err, eerr)
		}
	}()
	far := aheadOf(o)
	defer func() {
		if err != nil && far != nil {
			far.close()
		}
	}()
	bringSmall(o.Images)
	if o.Early != nil && o.alone() {
		e.begin(nil)
	}
	plan, inherited, err := planOf(&o)
	if err != nil {
		guardian.Close()
		return nil, err
	}
	e.begin(inherited)
	opened := make(chan contents, 1)
	go func() { opened <- openContents(o.Images, plan) }()
	client, err := begin(&o, guardian, plan)
	in := <-opened
	if err != nil {
		return nil, errors.Join(err, in.close())
	}
	if err = e.end(); err != nil {
		giveUp(client)
		return nil, errors.Join(client.Close(), in.close(), err)
	}
	f, err := provide(o, client, in, far, e.recorder)
	if err != nil {
		giveUp(client)
		return nil, errors.Join(err, client.Close())
	}
	f.inherited = inherited
	return f, nil
}

// alone tells that no process of the images can share memory with the one that it was forked from, so that CRIU may
// see the images as they are. What cannot be read is told by those who need it.
func (o *Options) alone() bool {
	if !o.Inherit {
		return true
	}
	families, err := criuimg.Families(o.Images.FS())
	return err == nil && !families
}

// summon gives a guardian, which waits for CRIU if that may come early.
func summon(o *Options) (*uffd.Spawned, error) {
	guardian := o.Spare
	for {
		var err error
		spare := guardian != nil
		if !spare {
			guardian, err = uffd.Spawn(o.Guardian)
		}
		if err == nil && o.Early != nil {
			if err = guardian.Listen(o.Work); err != nil {
				guardian.Close()
			}
		}
		if err == nil || !spare || !errors.Is(err, uffd.ErrGuardian) {
			return guardian, err
		}
		o.Logger.Warn("the spare guardian is gone, starting another", "error", err)
		guardian = nil
	}
}

// planOf reads the images.
func planOf(o *Options) (_ *uffd.Plan, inherited map[string][]byte, err error) {
	c, err := criuimg.Load(o.Images.FS())
	if err != nil {
		return nil, nil, fmt.Errorf("read the images: %w", err)
	}
	if o.Inherit {
		if inherited, err = inherit(o.Images, c, o.Logger); err != nil {
			return nil, nil, fmt.Errorf("find what processes share: %w", err)
		}
	}
	return uffd.NewPlan(c), inherited, nil
}

// begin tells a guardian what to do. A spare one that is gone is replaced, unless CRIU may have come to it.
func begin(o *Options, guardian *uffd.Spawned, plan *uffd.Plan) (*uffd.Client, error) {
	begin := uffd.GuardianOptions{Dir: o.Work, Plan: plan, Successor: o.Successor,
		RunBytes: runBytes(o.Memory, runtime.NumCPU()/max(o.Copies, 1)), Memory: o.Memory, Logger: o.Logger}
	client, err := guardian.Begin(begin)
	if o.Spare != nil && o.Early == nil && errors.Is(err, uffd.ErrGuardian) {
		o.Logger.Warn("the spare guardian is gone, starting another", "error", err)
		begin.Command = o.Guardian
		client, err = uffd.StartGuardian(begin)
	}
	return client, err
}

// giveUp ends a guardian for which nobody will provide: without a word it would look for a successor.
func giveUp(client *uffd.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	client.Abandon()
	client.Serve(ctx, noSupplier{})
}
