package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/gpucr/gpucr-fs/daemon/wire"
)

const (
	// silentFor is how long a command may work on a terminal before it shows that it does, if it has nothing to report.
	silentFor = 2 * time.Second
	// lineEvery is how often there is a line where stderr is no terminal.
	lineEvery = 10 * time.Second
)

// bar shows on stderr how far a command has come. On a terminal it is a progress bar, which appears with the first
// report; without one a spinner appears after a while. Elsewhere there is a line now and then, of JSON with --json.
type bar struct {
	a        *app
	title    string
	terminal bool
	every    time.Duration
	quit     chan struct{}
	ticking  sync.WaitGroup

	pace pace

	mu      sync.Mutex // locked before pace's
	mpb     *mpb.Progress
	bar     *mpb.Bar
	spinner bool // bar is one
}

// progress begins to show how far a command has come; close must be called.
func (a *app) progress(title string) *bar {
	every := lineEvery
	terminal := term.IsTerminal(int(a.err.Fd()))
	if terminal {
		every = silentFor
	}
	return a.progressEvery(title, terminal, every)
}

func (a *app) progressEvery(title string, terminal bool, every time.Duration) *bar {
	b := &bar{a: a, title: title, terminal: terminal, every: every, quit: make(chan struct{}),
		pace: pace{begun: time.Now()}}
	if a.quiet || title == "" {
		b.title = ""
		return b
	}
	b.ticking.Go(b.tick)
	return b
}

func (b *bar) tick() {
	t := time.NewTicker(b.every)
	defer t.Stop()
	for {
		select {
		case <-b.quit:
			return
		case now := <-t.C:
			b.mu.Lock()
			if !b.terminal {
				b.line(now)
			} else if b.bar == nil {
				b.show(true)
			}
			b.mu.Unlock()
		}
	}
}

// tell reports. It is called from one goroutine at a time.
func (b *bar) tell(p wire.Progress) {
	if b.title == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pace.add(p, time.Now())
	if !b.terminal {
		return
	}
	if b.bar == nil || b.spinner {
		b.hide()
		b.show(false)
	}
	// A bar that reaches its total is complete for ever; the last byte is left to close.
	b.bar.SetTotal(max(p.Total, p.Done)+1, false)
	b.bar.SetCurrent(p.Done)
}

// show puts a bar or a spinner on the terminal.
func (b *bar) show(spinner bool) {
	style := mpb.BarFillerBuilder(mpb.BarStyle())
	if spinner {
		style = mpb.SpinnerStyle()
	}
	state := decor.Any(func(decor.Statistics) string { return " " + b.pace.text(time.Now()) })
	b.mpb, b.spinner = mpb.New(mpb.WithOutput(b.a.err), mpb.WithWidth(40)), spinner
	b.bar = b.mpb.New(0, style, mpb.BarRemoveOnComplete(), mpb.PrependDecorators(decor.Name(b.title+" ")),
		mpb.AppendDecorators(state))
}

// hide takes the bar off the terminal.
func (b *bar) hide() {
	if b.bar != nil {
		b.bar.Abort(true)
		b.mpb.Wait()
		b.bar = nil
	}
}

// line prints how far things are.
func (b *bar) line(now time.Time) {
	if !b.a.json {
		fmt.Fprintf(b.a.err, "gpucr-fs: %s: %s\n", shown(b.title), b.pace.text(now))
		return
	}
	p, rate, left := b.pace.at(now)
	b.a.printLine(map[string]any{"progress": map[string]any{
		"title": b.title, "done": p.Done, "total": p.Total, "unit": p.Unit, "item": p.Item,
		"seconds": now.Sub(b.pace.begun).Seconds(), "per_second": rate, "seconds_left": left.Seconds(),
	}})
}

// close removes the bar.
func (b *bar) close() {
	select {
	case <-b.quit:
		return
	default:
		close(b.quit)
	}
	b.ticking.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hide()
}

// pace is how fast things go.
type pace struct {
	begun time.Time

	mu          sync.Mutex
	first, last wire.Progress // first is the report that the rate is counted from
	firstAt     time.Time
}

func (p *pace) add(now wire.Progress, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// What was done before this command began says nothing of the rate. With the next of several things Done begins
	// anew.
	if p.firstAt.IsZero() || now.Done < p.last.Done {
		p.first, p.firstAt = now, at
	}
	p.last = now
}

// rateAfter is how long things have to go on before a rate means something.
const rateAfter = time.Second

// at gives the last report, units a second, and the time until all is done at this rate; 0 where they are not known.
func (p *pace) at(now time.Time) (last wire.Progress, perSecond float64, left time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := now.Sub(p.firstAt)
	if p.firstAt.IsZero() || took < rateAfter || p.last.Done <= p.first.Done {
		return p.last, 0, 0
	}
	perSecond = float64(p.last.Done-p.first.Done) / took.Seconds()
	if rest := p.last.Total - p.last.Done; rest > 0 {
		left = time.Duration(float64(rest) / perSecond * float64(time.Second))
	}
	return p.last, perSecond, left
}

// text says all of it: 1.2GiB of 4.0GiB, 120MiB/s, 24s left. Before there is a report it is the time that has passed.
func (p *pace) text(now time.Time) string {
	last, rate, left := p.at(now)
	if last.Done == 0 && last.Total == 0 {
		return "working for " + now.Sub(p.begun).Round(time.Second).String()
	}
	amount := func(n int64) string {
		if last.Unit == "bytes" {
			return size(n)
		}
		return strings.TrimSpace(fmt.Sprintf("%d %s", n, last.Unit))
	}
	text := amount(last.Done)
	if last.Total > 0 {
		text += " of " + amount(max(last.Total, last.Done))
	}
	if rate > 0 && last.Unit == "bytes" {
		text += ", " + speed(rate)
	}
	if left > 0 {
		text += ", " + max(left.Round(time.Second), time.Second).String() + " left"
	}
	return text
}
