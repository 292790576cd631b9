package talk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
)

// Prepared is what a restore can start with.
type Prepared struct {
	ID         string `json:"id"`
	Checkpoint string `json:"checkpoint"` // its name
	Images     string `json:"-"`          // the image directory, as long as the caller is asked to run CRIU
	Work       string `json:"-"`          // CRIU's work directory
	Total      int64  `json:"total"`      // bytes that are filled in on demand; of a restore Served tells it
	Profile    bool   `json:"profile"`    // one is replayed
	AMDGPU     bool   `json:"amdgpu"`     // there are images of CRIU's amdgpu plugin
	// Early: the daemon cannot bring memory yet, and may turn out not to be able to. Served follows.
	Early bool `json:"early,omitempty"`
	// Served is where the caller has CRIU wait before tasks run. It returns when their memory can be brought, or with
	// ctx's error. nil: it can be brought already.
	Served func(ctx context.Context) error `json:"-"`
}

// Served follows Prepared in a restore, and comes before the verdict.
type Served struct {
	Total int64 `json:"served"` // bytes that are filled in on demand
	// Failed: the caller ends CRIU. The operation's error tells why.
	Failed bool `json:"failed,omitempty"`
	// Again: another try may succeed.
	Again bool `json:"again,omitempty"`
}

// LogLine is a line of the daemon's log that a client asked for.
type LogLine struct {
	Log string `json:"log"`
}

// ErrCallerFailed: CRIU did not do its part, or who ran it is gone.
var ErrCallerFailed = errors.New("criu failed, or was given up")

// Late is an error of what comes after CRIU has done its part. The verdict is that CRIU succeeded: of a dump the images
// may be all that is left of the processes.
type Late struct{ Err error }

func (l *Late) Error() string { return "criu has done its part, but then: " + l.Err.Error() }
func (l *Late) Unwrap() error { return l.Err }

// verdict is what the caller says when CRIU is done.
type verdict struct {
	OK bool `json:"ok"`
}

// Say sends one line of JSON to the caller.
func Say(out io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
	return err
}

// AwaitVerdict waits for the caller's verdict: whether CRIU succeeded. said is false when the caller is gone.
func AwaitVerdict(in io.Reader) (ok, said bool) {
	var v verdict
	line, err := bufio.NewReader(in).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &v) != nil {
		return false, false
	}
	return v.OK, true
}

// GiveVerdict is the caller's word.
func GiveVerdict(out io.Writer, ok bool) error { return Say(out, verdict{OK: ok}) }

// Lines passes on each line that is written to it.
type Lines struct {
	buf  []byte
	pass func([]byte)
}

// NewLines calls pass with each line, from the goroutine that writes it.
func NewLines(pass func(line []byte)) *Lines { return &Lines{pass: pass} }

func (l *Lines) Write(b []byte) (int, error) {
	l.buf = append(l.buf, b...)
	for {
		line, rest, ok := bytes.Cut(l.buf, []byte{'\n'})
		if !ok {
			return len(b), nil
		}
		l.pass(line)
		l.buf = rest
	}
}
