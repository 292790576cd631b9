package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpucr/gpucr-fs/tests/actors"
)

// struck is a dump one of whose actors was killed.
type struck struct {
	Actor   string  `json:"actor"`
	Step    string  `json:"step"`
	At      float64 `json:"at"`      // s from the dump's start
	Killed  bool    `json:"killed"`  // the actor was there
	Dumped  bool    `json:"dumped"`  // the dump succeeded all the same
	Back    float64 `json:"back"`    // s from the kill until all processes had answered
	Problem string  `json:"problem"` // what is wrong with the program since then
}

// maxLost is how many programs may be lost before the rest is given up.
const maxLost = 3

// killing is what the steps of -kills share.
type killing struct {
	*bench
	a      *app
	random *rand.Rand
	span   map[string][2]time.Duration // when an actor is there to be killed, in a dump that nobody disturbs
	lost   int
}

// killSteps gives the steps of -kills.
func (b *bench) killSteps() []step {
	k := &killing{bench: b, random: rand.New(rand.NewPCG(b.o.seed, 0)), span: map[string][2]time.Duration{}}
	return []step{
		{"machine", time.Minute, b.machine},
		{"start the program", 2 * time.Minute, k.begin},
		{"dumps that nobody disturbs", 2 * time.Minute, k.watch},
		{"dumps with an actor killed", b.o.budget, k.strikeAll},
		{"a dump afterwards", 2 * time.Minute, func(ctx context.Context) error {
			if k.a == nil {
				return errNotStarted
			}
			return errors.Join(b.dump(ctx, k.a, "after", true), k.a.verify(ctx))
		}},
	}
}

var errNotStarted = errors.New("the application did not start")

// begin starts two processes with GPU memory, and a child that one of them has forked.
func (k *killing) begin(ctx context.Context) error {
	a, err := k.start(ctx, fmt.Sprintf("struck-%d", k.number()), 2, small)
	if err == nil {
		err = a.fork(ctx)
	}
	if err == nil {
		k.a = a
	}
	return err
}

// watch learns from dumps that nobody disturbs how long the actors are there: of criu, how long it writes memory. The
// first dump is not like those that follow: its chunks are new to the store.
func (k *killing) watch(ctx context.Context) error {
	if k.a == nil {
		return errNotStarted
	}
	for i := range 3 {
		name := fmt.Sprintf("undisturbed-%d", i)
		cmd, done, err := k.prepare(k.gpucrfs, k.dumpArgs(k.a, name, true)...)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := cmd.Start(); err != nil {
			return done(err)
		}
		ended := wait(cmd, done)
		d := k.dumpOf(cmd, k.a)
		w := actors.NewWatch(d)
		span := map[string][2]time.Duration{}
		see := func(actor string) {
			s, ok := span[actor]
			if !ok {
				s[0] = time.Since(start)
			}
			s[1] = time.Since(start)
			span[actor] = s
		}
		for going := true; going; {
			if w.Step() == actors.Writing {
				see(actors.CRIU)
			}
			for _, actor := range []string{actors.Command, actors.Holder, actors.Daemon} {
				if d.Find(actor) != 0 {
					see(actor)
				}
			}
			select {
			case err = <-ended:
				going = false
			case <-ctx.Done():
				return errors.Join(ctx.Err(), <-ended)
			case <-time.After(time.Millisecond):
			}
		}
		if err != nil {
			return err
		}
		if err := k.a.verify(ctx); err != nil {
			return err
		}
		k.span, k.dumpTook = span, time.Since(start)
		if _, err := k.fs(ctx, "rm", "-y", k.store, name); err != nil {
			return err
		}
	}
	k.fact("a dump that nobody disturbs: %.2f s; seed %d", k.dumpTook.Seconds(), k.o.seed)
	for _, actor := range sortedKeys(k.span) {
		k.fact("%s can be killed from %.2f to %.2f s", actor, k.span[actor][0].Seconds(), k.span[actor][1].Seconds())
	}
	return nil
}

// wait gives the end of a command that was started.
func wait(cmd *exec.Cmd, done func(error) error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- done(cmd.Wait()) }()
	return ended
}

func sortedKeys(m map[string][2]time.Duration) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// strikeAll kills one actor after the other, each at moments spread over all of its time.
func (k *killing) strikeAll(ctx context.Context) error {
	if len(k.span) == 0 {
		return errors.New("it is not known how long a dump takes")
	}
	names := sortedKeys(k.span)
	each := (k.o.kills + len(names) - 1) / len(names)
	moments := map[string][]time.Duration{}
	for _, actor := range names {
		from, to := k.span[actor][0], k.span[actor][1]
		for _, m := range actors.Moments(k.random, each, to-from) {
			moments[actor] = append(moments[actor], from+m)
		}
	}
	longest := time.Duration(0)
	for i := range k.o.kills {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < 2*longest {
			k.fact("the budget ended after %d of %d kills", i, k.o.kills)
			break
		}
		start := time.Now()
		actor := names[i%len(names)]
		at := moments[actor][i/len(names)]
		s, err := k.strike(ctx, i, actor, at)
		for left := 4; err == nil && !s.Killed && s.Problem == "" && left > 0; left-- {
			at = at * 3 / 4 // that dump was faster
			if left == 1 {
				at = 0 // as soon as it is there
			}
			s, err = k.strike(ctx, i, actor, at)
		}
		if err != nil {
			return err
		}
		k.res.Kills = append(k.res.Kills, s)
		fmt.Fprintf(
			k.out, "kill %d: %s after %.3f s, %s: killed %v, dumped %v, all answer after %s %s\n", i+1, s.Actor, s.At,
			s.Step, s.Killed, s.Dumped, seconds(s.Back), s.Problem,
		)
		if s.Problem != "" {
			if k.lost++; k.lost == maxLost {
				return fmt.Errorf("%d programs were lost or wrong; the rest is given up", k.lost)
			}
			if err := errors.Join(k.a.killTree(ctx), k.begin(ctx)); err != nil {
				return err
			}
		}
		longest = max(longest, time.Since(start))
	}
	if k.lost > 0 {
		return fmt.Errorf("%d programs were lost or wrong", k.lost)
	}
	return nil
}

// strike begins a dump, kills an actor when its moment has come, and sees whether the program goes on. Its error is not
// about the program.
func (k *killing) strike(ctx context.Context, i int, actor string, at time.Duration) (s struck, err error) {
	s.Actor = actor
	name := fmt.Sprintf("struck-%d", i)
	cmd, done, err := k.prepare(k.gpucrfs, k.dumpArgs(k.a, name, true)...)
	if err != nil {
		return s, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return s, done(err)
	}
	ended := wait(cmd, done)
	d := k.dumpOf(cmd, k.a)
	w := actors.NewWatch(d)
	var said error
	for going := true; going && !s.Killed; {
		s.Step = w.Step()
		if time.Since(start) >= at {
			pid, err := d.Kill(actor)
			if err != nil {
				return s, errors.Join(err, <-ended)
			}
			s.Killed = pid != 0
		}
		select {
		case said = <-ended:
			going, ended = false, nil
		default:
			time.Sleep(time.Millisecond)
		}
	}
	killed := time.Now()
	s.At = killed.Sub(start).Seconds()
	vctx, cancel := context.WithTimeout(ctx, k.o.within)
	defer cancel()
	err = k.a.verify(vctx)
	s.Back = since(killed)
	if ended != nil {
		select {
		case said = <-ended:
		case <-vctx.Done():
			err = errors.Join(err, fmt.Errorf("gpucr-fs dump has not ended %v after %s was killed", k.o.within, actor))
			cmd.Process.Signal(syscall.SIGQUIT) // it tells where it stands
			said = <-ended
		}
	}
	for d.Busy() && vctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	if d.Busy() {
		err = errors.Join(err, errors.New("a gpucr-cuda or criu does not end"))
	}
	if err == nil { // what came last may have done harm as well
		err = k.a.verify(vctx)
	}
	s.Dumped = said == nil
	if ctx.Err() != nil {
		return s, fmt.Errorf("the time was over before it was known what became of the program: %w", ctx.Err())
	}
	if err != nil {
		s.Problem = fmt.Sprintf("%v; gpucr-fs dump: %v; %s", err, said, k.look())
		k.a.killTree(ctx)
		return s, nil
	}
	if s.Dumped {
		_, err = k.fs(ctx, "rm", "-y", k.store, name)
	}
	if err == nil && i%8 == 7 {
		_, err = k.fs(ctx, "gc", "-y", k.store)
	}
	return s, err
}

// look tells how the program's processes are, and what it has said.
func (k *killing) look() string {
	var text strings.Builder
	for _, pid := range descendants(k.a.pid) {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		fmt.Fprintf(&text, "process %d:", pid)
		for line := range strings.Lines(string(status)) {
			if strings.HasPrefix(line, "State:") || strings.HasPrefix(line, "TracerPid:") {
				fmt.Fprintf(&text, " %s", strings.Join(strings.Fields(line), " "))
			}
		}
		text.WriteString("; ")
	}
	log, _ := os.ReadFile(filepath.Join(k.o.work, "logs", "app-"+filepath.Base(k.a.socket)+".log"))
	const tail = 2000
	return text.String() + "its log: " + string(log[max(0, len(log)-tail):])
}
