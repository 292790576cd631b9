package wire

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// ErrGone: the daemon ended while it was being spoken to.
var ErrGone = errors.New("the daemon is gone")

// What the operations' socket is asked for, by HTTP.
const (
	// OpsPath, with the name of an operation behind it, runs that.
	OpsPath = "/v1/ops/"
	// StreamHeader says that raw input follows the request's line.
	StreamHeader = "Gpucr-Stream"
	// HoldPath is where a client says that it is there. The answer comes at once; the daemon stays until the client
	// goes. With the query LongHold the client is one that goes when somebody ends it, not when its work is done.
	HoldPath = "/v1/hold"
	LongHold = "long"
)

// maxLine bounds a request or the head of a frame in bytes. The longest result, ls of a store with very many
// checkpoints, stays far below.
const maxLine = 256 << 20

// frame is one line of an answer; exactly one field is set.
type frame struct {
	Progress *Progress       `json:"progress,omitempty"`
	Data     int             `json:"data,omitempty"` // so many raw bytes follow the line
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *Error          `json:"error,omitempty"`
}

// FrameWriter writes an answer. mu keeps frames whole: progress and output may come from different goroutines.
type FrameWriter struct {
	mu    sync.Mutex
	w     io.Writer
	flush func() error
}

// NewFrameWriter writes an answer to w; flush is called after each frame.
func NewFrameWriter(w io.Writer, flush func() error) *FrameWriter {
	return &FrameWriter{w: w, flush: flush}
}

func (f *FrameWriter) put(fr frame, data []byte) error {
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
func (f *FrameWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := f.put(frame{Data: len(p)}, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Progress sends how far the operation is.
func (f *FrameWriter) Progress(p Progress) error { return f.put(frame{Progress: &p}, nil) }

// Finish sends the last frame.
func (f *FrameWriter) Finish(res any, err error) error {
	if err != nil {
		return f.put(frame{Error: NewError(err)}, nil)
	}
	raw, err := json.Marshal(res)
	if err != nil {
		return f.put(frame{Error: NewError(fmt.Errorf("encode the result: %w", err))}, nil)
	}
	return f.put(frame{Result: raw}, nil)
}

// ReadLine reads one line of at most maxLine bytes.
func ReadLine(r *bufio.Reader) ([]byte, error) {
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

// ReadFrames takes an answer apart until its last frame.
func ReadFrames(r *bufio.Reader, st Streams, res any) error {
	for {
		line, err := ReadLine(r)
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
			return f.Error.Err()
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
