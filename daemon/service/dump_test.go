package service

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/mounts"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// dumped is a mount with a dump that CRIU has not brought to an end; complete where its inventory is there.
type dumped struct {
	mounts.Mount
	complete bool
	became   string
}

func (d *dumped) Settle(context.Context, string) error {
	if !d.complete {
		d.became = "given up"
		return nil
	}
	d.became = "left unsealed"
	return errors.New("left unsealed")
}

func (d *dumped) Seal(context.Context, string) (index.Info, error) {
	d.became = "sealed"
	return index.Info{}, nil
}

func (d *dumped) Discard(string) error {
	d.became = "given up"
	return nil
}

// A complete dump is given up only when its process is known to live, and sealed when that is known to end.
func TestFailedDumpIsGivenUpOnlyBesideItsProcess(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	process, err := wire.OpenProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	become := func(of string, first *wire.Process, complete bool, want string) {
		t.Helper()
		d := &dumped{complete: complete}
		discard(t.Context(), &mounts.Mounted{Mount: d}, "x", first) // the error tells the same
		if d.became != want {
			t.Errorf("the dump of a process %s, complete: %v: %s, want %s", of, complete, d.became, want)
		}
	}
	become("that lives", process, true, "given up")
	become("that lives", process, false, "given up")
	become("that is not known", nil, true, "left unsealed")
	become("that is not known", nil, false, "given up")
	cmd.Process.Kill()
	cmd.Wait()
	become("that has ended", process, true, "sealed")
	become("that has ended", process, false, "given up")
}
