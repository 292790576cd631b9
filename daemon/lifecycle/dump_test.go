package lifecycle

import (
	"context"
	"errors"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// What fails after CRIU has dumped does not cost the checkpoint, which may be all that is left of the processes. It is
// told all the same. What CRIU fails at leaves nothing.
func TestLateFailureKeepsTheDump(t *testing.T) {
	dir := newStore(t)
	serve(t, dir)
	fault := errors.New("the GPUs do not come back")
	for name, failure := range map[string]error{"late": &talk.Late{Err: fault}, "early": fault} {
		o := client.DumpOptions{Name: name, Progress: func(wire.Progress) {}}
		o.Run = func(context.Context, string) error { return failure }
		res, err := client.DumpInto(t.Context(), dir, o)
		if kept := res.Name == name; !errors.Is(err, fault) || kept != (name == "late") {
			t.Errorf("%s: kept: %v, told: %v", name, kept, err)
		}
	}
	list, err := service.Names.Do(t.Context(), connect(t, dir, true), service.NamesRequest{}, wire.Streams{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Checkpoints) != 1 || list.Checkpoints[0].Name != "late" {
		t.Errorf("the store has %+v", list.Checkpoints)
	}
}
