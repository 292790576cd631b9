package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
)

// stage stands in for a test, which package rig is made for: it cleans up in reverse order, and what would fail a test
// ends it with an error.
type stage struct {
	testing.TB
	dir     string
	ctx     context.Context
	cleanup []func()
	errs    []error
}

// ended is what Fatal panics with.
type ended struct{}

func newStage(ctx context.Context) (*stage, error) {
	dir, err := os.MkdirTemp("", "gpucr-benchgpu-")
	return &stage{dir: dir, ctx: ctx}, err
}

// play runs f, then all that f left to be cleaned up.
func (s *stage) play(f func()) error {
	protect := func(f func()) {
		defer func() {
			if v := recover(); v != nil {
				if _, ok := v.(ended); !ok {
					panic(v)
				}
			}
		}()
		f()
	}
	protect(f)
	for _, f := range slices.Backward(s.cleanup) {
		protect(f)
	}
	return errors.Join(append(s.errs, os.RemoveAll(s.dir))...)
}

// fail notes an error and ends what runs.
func (s *stage) fail(err error) {
	s.errs = append(s.errs, err)
	panic(ended{})
}

// must ends what runs when there is an error.
func (s *stage) must(err error) {
	if err != nil {
		s.fail(err)
	}
}

func (s *stage) Helper()                        {}
func (s *stage) Name() string                   { return "benchgpu" }
func (s *stage) Context() context.Context       { return s.ctx }
func (s *stage) Cleanup(f func())               { s.cleanup = append(s.cleanup, f) }
func (s *stage) Log(a ...any)                   { fmt.Fprintln(os.Stderr, a...) }
func (s *stage) Logf(format string, a ...any)   { fmt.Fprintf(os.Stderr, format+"\n", a...) }
func (s *stage) Error(a ...any)                 { s.errs = append(s.errs, errors.New(fmt.Sprint(a...))) }
func (s *stage) Errorf(f string, a ...any)      { s.errs = append(s.errs, fmt.Errorf(f, a...)) }
func (s *stage) Fatal(a ...any)                 { s.fail(errors.New(fmt.Sprint(a...))) }
func (s *stage) Fatalf(format string, a ...any) { s.fail(fmt.Errorf(format, a...)) }

func (s *stage) TempDir() string {
	dir, err := os.MkdirTemp(s.dir, "")
	s.must(err)
	return dir
}
