package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/tests/budget"
)

// FuzzFrames holds the client to any answer: an error or a result, never a panic.
func FuzzFrames(f *testing.F) {
	for _, fr := range []frame{{Progress: &Progress{Done: 1}}, {Result: json.RawMessage(`{"a":1}`)},
		{Error: &Error{Text: "x", Class: "corrupt"}}, {Data: 3}} {
		line, err := json.Marshal(fr)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(line, "\nabc\n"...))
	}
	f.Add([]byte("{\"data\":-1}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer budget.Watch(t, len(data))()
		var res map[string]any
		err := ReadFrames(bufio.NewReader(bytes.NewReader(data)), Streams{Progress: func(Progress) {}}, &res)
		if err == nil && res == nil && !strings.Contains(string(data), "null") {
			t.Error("neither a result nor an error")
		}
	})
}
