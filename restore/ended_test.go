package restore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A CRIU that is killed is not one that ends without a word.
func TestKilledCRIU(t *testing.T) {
	program := filepath.Join(t.TempDir(), "criu")
	script := "#!/bin/sh\nif [ \"$1\" = swrk ]; then kill -KILL $$; fi\necho Version: 4.2\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := Start(Options{Program: program, EndTree: func(int) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Restore(t.Context(), t.TempDir(), t.TempDir(), "restore.log")
	if err == nil || !strings.Contains(err.Error(), "it was ended by a signal: killed") {
		t.Errorf("the restore ended with %v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
