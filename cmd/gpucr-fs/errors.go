package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/diagnosis"
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

// failure is what --json prints of an error, as one line on stderr.
type failure struct {
	Error      string `json:"error"`
	Hint       string `json:"hint,omitempty"`
	Code       int    `json:"code"`            // the exit code
	Class      string `json:"class,omitempty"` // of index.Class
	Checkpoint string `json:"checkpoint,omitempty"`
	File       string `json:"file,omitempty"`
	Offset     int64  `json:"offset,omitempty"`
	// CRIU are the first errors of its log where it failed.
	CRIU []string `json:"criu,omitempty"`
}

// reportAs finds out whether errors are wanted as JSON where the arguments of cmd were not understood: what follows the
// one that is wrong was not read, nor were environment and configuration.
func (a *app) reportAs(cmd *cobra.Command, args []string) {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	_ = a.configure(cmd) // the first error is the one to report
	a.json = a.json || slices.Contains(args, "--json")
}

// report prints an error: one line, one with a hint where there is one, and CRIU's own lines where it failed; with
// --json one line of JSON.
func (a *app) report(err error) {
	f := failure{Error: oneLine(err.Error()), Hint: index.HintOf(err), Code: a.exitCode(err)}
	if errors.Is(err, context.Canceled) {
		f.Error = "interrupted"
	} else if f.Hint == "" {
		f.Hint = systemHint(err)
	}
	var c *codeError
	var criu *diagnosis.Failure
	if errors.As(err, &criu) {
		f.Hint = criu.Hint
		if criu.Cause != "" { // else they are the error
			f.CRIU = criu.Lines
		}
	}
	switch {
	case errors.As(err, &c) && c.hint != "":
		f.Hint = c.hint
	case f.Hint == "" && !a.running:
		f.Hint = "gpucr-fs help shows the commands, gpucr-fs COMMAND --help their flags"
	}
	if !a.json {
		fmt.Fprintf(a.err, "gpucr-fs: %s\n", shown(f.Error))
		if f.Hint != "" {
			fmt.Fprintf(a.err, "hint: %s\n", shown(f.Hint))
		}
		for _, line := range f.CRIU {
			fmt.Fprintf(a.err, "criu: %s\n", shown(line))
		}
		return
	}
	if e := (*index.Error)(nil); errors.As(err, &e) {
		f.Class, f.Checkpoint, f.File, f.Offset = e.Class.String(), e.Checkpoint, e.File, e.Offset
	}
	a.printLine(f)
}

// systemHint tells what to do about errors of the operating system that nobody has a better hint for.
func systemHint(err error) string {
	switch {
	case errors.Is(err, syscall.EROFS):
		return "the disk is mounted read-only: mount it read-write, or use another"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free space on that disk; of a store, with gpucr-fs rm and gc"
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return "run the command as root"
	}
	return ""
}

// note tells on stderr what the user should know beside the result.
func (a *app) note(format string, args ...any) {
	text := oneLine(fmt.Sprintf(format, args...))
	if a.json {
		a.printLine(struct {
			Note string `json:"note"`
		}{text})
		return
	}
	fmt.Fprintf(a.err, "gpucr-fs: %s\n", shown(text))
}

// printLine prints a line of JSON on stderr. An error of it has nowhere to go.
func (a *app) printLine(v any) {
	e := json.NewEncoder(a.err)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
}

// oneLine puts the lines of joined errors into one. The same error may have come from several sides.
func oneLine(text string) string {
	return strings.Join(slices.Compact(strings.Split(strings.TrimSpace(text), "\n")), "; ")
}
