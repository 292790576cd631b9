package lifecycle

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// TestKilledWhileStarting kills a daemon before it has read what it is to do.
func TestKilledWhileStarting(t *testing.T) {
	script := filepath.Join(t.TempDir(), "daemon")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec 0<&-\nkill -9 $$\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	// More than a pipe holds.
	_, err := Spawn(t.Context(), script, []string{"daemon"}, make([]byte, 1<<20), filepath.Join(t.TempDir(), "log"))
	if !errors.Is(err, wire.ErrGone) {
		t.Errorf("told: %v", err)
	}
}
