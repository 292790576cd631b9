// Command gpucr-fs keeps CRIU checkpoints in a deduplicating store and shows them as image directories.
//
// Each command is one file: flags, one call, output. What happens is in the packages it calls.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

// Set by the linker.
var (
	version = "dev"
	commit  string // where the toolchain was not to look for it
)

// gcPercent keeps the collector close behind. What is large lies outside its heap, so that it costs no time that could
// be measured, and the memory of gc and verify over a large store shrinks by a third against the default of 100.
const gcPercent = 25

// A command's start makes some MB that live as long as it does. gcPercent has the collector run at each MB of them. It
// is set when the command is known, and not for one that is over soon and has the processes wait that it restores.
const (
	startPercent = 400
	hastyPercent = 200
)

// collect sets how close behind the collector keeps, unless the user has said so.
func collect(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

func main() {
	collect(startPercent)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A second signal ends the program at once. timeout(1) and others send the first one twice, to the process and to
	// its group.
	context.AfterFunc(ctx, func() {
		time.Sleep(time.Second)
		stop()
	})
	os.Exit(run(ctx, toolArgs(os.Args)))
}

func run(ctx context.Context, args []string) int {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	root := a.root()
	root.SetArgs(criuVerbosity(args))
	cmd, err := root.ExecuteContextC(ctx)
	if code := ended(0); errors.As(err, &code) {
		return int(code)
	}
	if err != nil {
		if !a.running {
			a.reportAs(cmd, args)
		}
		a.report(err)
	}
	return a.exitCode(err)
}
