package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpucr/gpucr-fs/index"
)

// Exit codes. They are part of the interface.
const (
	exitOK      = 0
	exitError   = 1
	exitUsage   = 2
	exitPartial = 3
	exitNoStore = 10
	exitInUse   = 11
	exitCorrupt = 12
)

// codeError is an error with an exit code of its own.
type codeError struct {
	code int
	hint string
	err  error
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }

// usage is an error of the command line.
func usage(err error, hint string) error { return &codeError{exitUsage, hint, err} }

// exitCode turns an error into the program's exit code. Errors before a command began to run are of the command line.
func (a *app) exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	var c *codeError
	if errors.As(err, &c) {
		return c.code
	}
	if !a.running {
		return exitUsage
	}
	switch index.ClassOf(err) {
	case index.Invalid:
		return exitUsage
	case index.NoStore:
		return exitNoStore
	case index.Corrupt:
		return exitCorrupt
	case index.InUse:
		// A checkpoint in use is an error like another; the code is for the store.
		if e := (*index.Error)(nil); errors.As(err, &e) && e.Checkpoint == "" {
			return exitInUse
		}
	}
	return exitError
}

// report prints an error: one line, and one with a hint where there is one.
func (a *app) report(err error) {
	text, hint := err.Error(), index.HintOf(err)
	if errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	var c *codeError
	switch {
	case errors.As(err, &c) && c.hint != "":
		hint = c.hint
	case hint == "" && !a.running:
		hint = "gpucr-fs help shows the commands, gpucr-fs COMMAND --help their flags"
	}
	fmt.Fprintf(a.err, "gpucr-fs: %s\n", strings.ReplaceAll(strings.TrimSpace(text), "\n", "; "))
	if hint != "" {
		fmt.Fprintf(a.err, "hint: %s\n", hint)
	}
}
