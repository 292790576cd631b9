package main

import (
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// bar is a progress bar on stderr; nothing where stderr is no terminal. It appears with the first report.
type bar struct {
	title string
	on    bool
	out   *os.File
	p     *mpb.Progress
	b     *mpb.Bar
}

func (a *app) progress(title string) *bar {
	return &bar{title: title, out: a.err, on: !a.quiet && title != "" && term.IsTerminal(int(a.err.Fd()))}
}

// tell is called from one goroutine at a time.
func (b *bar) tell(p wire.Progress) {
	if !b.on {
		return
	}
	if b.b == nil {
		b.start(p.Unit)
	}
	// A bar that reaches its total is complete for ever; the last byte is left to close.
	b.b.SetTotal(max(p.Total, p.Done)+1, false)
	b.b.SetCurrent(p.Done)
}

func (b *bar) start(unit string) {
	b.p = mpb.New(mpb.WithOutput(b.out), mpb.WithWidth(40))
	counters, speed := decor.CountersNoUnit("%d/%d"), decor.Any(func(decor.Statistics) string { return "" })
	if unit == "bytes" {
		counters, speed = decor.CountersKibiByte("% .1f/% .1f"), decor.AverageSpeed(decor.SizeB1024(0), " % .0f")
	}
	b.b = b.p.AddBar(0, mpb.BarRemoveOnComplete(), mpb.PrependDecorators(decor.Name(b.title+" ")), mpb.AppendDecorators(counters, speed))
}

// close removes the bar.
func (b *bar) close() {
	if b.b == nil {
		return
	}
	b.b.Abort(true)
	b.p.Wait()
}
