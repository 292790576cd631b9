package restore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/restore/diagnosis"
)

func TestProgramIsJudged(t *testing.T) {
	dir := t.TempDir()
	program := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct{ text, cause string }{
		{"exit 1", " is not criu: its --version shows no version of criu"},
		{"echo hello", " is not criu: its --version shows no version of criu"},
		{"echo Version: 3.17.1", "criu 3.17.1 is too old ("},
		{"echo Version: 4.1", "criu 4.1 is too old ("},
		{"echo Version: 4.2", ""},
		{"echo Version: 10.0", ""},
	} {
		f := judge(program("criu", c.text), diagnosis.Of([]string{"it ended"}))
		if !strings.Contains(f.Cause, c.cause) || (c.cause == "") != (f.Cause == "") {
			t.Errorf("%q: %q", c.text, f.Cause)
		}
	}
	if f := judge(program("criu", "exit 1"), &diagnosis.Failure{Cause: "known"}); f.Cause != "known" {
		t.Errorf("a known cause became %q", f.Cause)
	}
}
