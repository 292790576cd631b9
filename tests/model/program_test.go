package model

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// op is one step of a program. Its verb (verbs in exec_test.go) says which fields count; the others are zero. A step
// whose checkpoint, draft or file is not there does nothing, so that every part of a program is a program.
type op struct {
	ID   int    `json:"id"` // draws its crashes and faults, whatever other steps there are
	Do   string `json:"do"`
	Ckpt string `json:"ckpt,omitempty"`
	To   string `json:"to,omitempty"` // another checkpoint, a tag, or another file
	File string `json:"file,omitempty"`
	Off  int64  `json:"off,omitempty"` // -1: at the end of the file
	Len  int64  `json:"len,omitempty"`
	Seed uint64 `json:"seed,omitempty"`

	NoFaults bool   `json:"no_faults,omitempty"` // without crashes and faults
	Beside   []op   `json:"beside,omitempty"`    // run while this one is held up at a storage call: see beside_test.go
	At       int    `json:"at,omitempty"`        // of a step beside another: the storage call at which it begins
	On       string `json:"on,omitempty"`        // storage.Op: only calls of this kind count for At
	Threads  [][]op `json:"threads,omitempty"`   // of par: run at once
}

// program is what one store lives through. Its text is a line of JSON for the head and one for each step.
type program struct {
	Seed        uint64 `json:"seed"`
	Mode        mode   `json:"mode"`
	PackSize    int64  `json:"pack_size"`
	CommitEvery int64  `json:"commit_every"`
	Shrink      int64  `json:"shrink_journal"`
	Compression string `json:"compression"`
	Ops         []op   `json:"-"`
}

// mode says what goes wrong besides what the steps themselves do.
type mode string

const (
	crashes mode = "crashes" // any storage call may be the last before a crash
	faults  mode = "faults"  // calls fail, and say so: every promise holds
	liars   mode = "liars"   // calls do nothing and say they did, reads are wrong: bytes may be lost, never be wrong
)

func (p *program) String() string {
	var b strings.Builder
	line := func(v any) {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	line(p)
	for _, o := range p.Ops {
		line(o)
	}
	return b.String()
}

func parseProgram(r io.Reader) (*program, error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	var p *program
	for n := 1; in.Scan(); n++ {
		text := strings.TrimSpace(in.Text())
		if text == "" {
			continue
		}
		var err error
		if p == nil {
			p = &program{}
			err = json.Unmarshal([]byte(text), p)
		} else {
			var o op
			err = json.Unmarshal([]byte(text), &o)
			p.Ops = append(p.Ops, o)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if p == nil {
		return nil, fmt.Errorf("no program: %w", in.Err())
	}
	return p, in.Err()
}
