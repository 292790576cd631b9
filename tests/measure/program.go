package measure

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

// Main runs a benchmark: with the arguments of the process, until it ends or the process is told to.
func Main(name string, run func(ctx context.Context, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Programs makes the paths of gpucr-fs and criu absolute, criu's default filled in, and fails where one is missing.
func Programs(gpucr, criu *string) error {
	if *criu == "" {
		*criu = "build/criu/criu"
	}
	for _, p := range []*string{gpucr, criu} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		if _, err := os.Stat(abs); err != nil {
			return fmt.Errorf("%w (hint: run make build criu)", err)
		}
		*p = abs
	}
	return nil
}
