package wire

import (
	"context"
	"errors"

	"github.com/gpucr/gpucr-fs/index"
)

// Error carries an error's text and classification to the other side.
type Error struct {
	Text       string `json:"text"`
	Class      string `json:"class"`
	Op         string `json:"op,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	File       string `json:"file,omitempty"`
	Offset     int64  `json:"offset,omitempty"`
	Hint       string `json:"hint,omitempty"`
	Canceled   bool   `json:"canceled,omitempty"`
	ByDaemon   bool   `json:"by_daemon,omitempty"` // it is index.ErrDaemonHolds
}

// NewError puts an error into words for the other side.
func NewError(err error) *Error {
	w := &Error{Text: err.Error(), Class: index.ClassOf(err).String(), Hint: index.HintOf(err),
		Canceled: errors.Is(err, context.Canceled), ByDaemon: errors.Is(err, index.ErrDaemonHolds)}
	var e *index.Error
	if errors.As(err, &e) {
		w.Op, w.Checkpoint, w.File, w.Offset = e.Op, e.Checkpoint, e.File, e.Offset
	}
	return w
}

// remoteError is an error that happened in the daemon; it unwraps to its classification.
type remoteError struct {
	text  string
	cause error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.cause }

// Err gives the error back, with its text and its classification.
func (w *Error) Err() error {
	if w.Canceled {
		return &remoteError{w.Text, context.Canceled}
	}
	e := &index.Error{Op: w.Op, Checkpoint: w.Checkpoint, File: w.File, Offset: w.Offset, Hint: w.Hint}
	if w.ByDaemon {
		e.Err = index.ErrDaemonHolds
	}
	for c := index.Other; c <= index.Unreachable; c++ {
		if c.String() == w.Class {
			e.Class = c
		}
	}
	return &remoteError{w.Text, e}
}
