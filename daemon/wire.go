package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/gpucr/gpucr-fs/index"
)

// maxLine bounds a request or the head of a frame in bytes. The longest result, ls of a store with very many checkpoints, stays far below.
const maxLine = 256 << 20

// frame is one line of an answer; exactly one field is set.
type frame struct {
	Progress *Progress       `json:"progress,omitempty"`
	Data     int             `json:"data,omitempty"` // so many raw bytes follow the line
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *wireError      `json:"error,omitempty"`
}

// wireError carries an error's text and classification to the other side.
type wireError struct {
	Text       string `json:"text"`
	Class      string `json:"class"`
	Op         string `json:"op,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	File       string `json:"file,omitempty"`
	Offset     int64  `json:"offset,omitempty"`
	Hint       string `json:"hint,omitempty"`
	Canceled   bool   `json:"canceled,omitempty"`
}

func toWire(err error) *wireError {
	w := &wireError{Text: err.Error(), Class: index.ClassOf(err).String(), Hint: index.HintOf(err), Canceled: errors.Is(err, context.Canceled)}
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

func (w *wireError) error() error {
	if w.Canceled {
		return &remoteError{w.Text, context.Canceled}
	}
	e := &index.Error{Op: w.Op, Checkpoint: w.Checkpoint, File: w.File, Offset: w.Offset, Hint: w.Hint}
	for c := index.Other; c <= index.Unsupported; c++ {
		if c.String() == w.Class {
			e.Class = c
		}
	}
	return &remoteError{w.Text, e}
}

// frameWriter writes an answer. mu keeps frames whole: progress and output may come from different goroutines.
type frameWriter struct {
	mu    sync.Mutex
	w     io.Writer
	flush func() error
}

func (f *frameWriter) put(fr frame, data []byte) error {
	line, err := json.Marshal(fr)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.w.Write(append(line, '\n')); err != nil {
		return err
	}
	if len(data) > 0 {
		if _, err := f.w.Write(data); err != nil {
			return err
		}
	}
	return f.flush()
}

// Write sends a piece of output.
func (f *frameWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := f.put(frame{Data: len(p)}, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// finish sends the last frame.
func (f *frameWriter) finish(res any, err error) error {
	if err != nil {
		return f.put(frame{Error: toWire(err)}, nil)
	}
	raw, err := json.Marshal(res)
	if err != nil {
		return f.put(frame{Error: toWire(fmt.Errorf("encode the result: %w", err))}, nil)
	}
	return f.put(frame{Result: raw}, nil)
}

// readLine reads one line of at most maxLine bytes.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > maxLine:
			return nil, fmt.Errorf("a line is longer than %d bytes", maxLine)
		}
	}
}

// readFrames takes an answer apart until its last frame.
func readFrames(r *bufio.Reader, st Streams, res any) error {
	for {
		line, err := readLine(r)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
		var f frame
		if err := json.Unmarshal(line, &f); err != nil {
			return fmt.Errorf("the daemon sent what is no frame: %w", err)
		}
		switch {
		case f.Error != nil:
			return f.Error.error()
		case f.Result != nil:
			return json.Unmarshal(f.Result, res)
		case f.Progress != nil:
			if st.Progress != nil {
				st.Progress(*f.Progress)
			}
		case f.Data > 0:
			out := st.Out
			if out == nil {
				out = io.Discard
			}
			if err := passOn(out, r, f.Data); err != nil {
				return fmt.Errorf("pass on output: %w", err)
			}
		}
	}
}

// passOn copies n bytes from r's buffer, without another one in between.
func passOn(w io.Writer, r *bufio.Reader, n int) error {
	for n > 0 {
		if _, err := r.Peek(1); err != nil {
			return err
		}
		b, err := r.Peek(min(n, r.Buffered()))
		if err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		n -= len(b)
		if _, err := r.Discard(len(b)); err != nil {
			return err
		}
	}
	return nil
}
