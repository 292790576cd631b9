package restores

import (
	"log/slog"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/lifetime"
)

type noMounts struct{}

func (noMounts) Public() bool { return false }

// An unmount waits for a daemon whose restores only pack their hot sets, and not for one that fills memory.
func TestPackingIsOver(t *testing.T) {
	tab := New(Options{Lifetime: lifetime.New(), Mounts: noMounts{}, Spare: &Spare{},
		Log: slog.New(slog.DiscardHandler)})
	if !tab.Over() || tab.Any() {
		t.Error("there is a restore in a new table")
	}
	filled := make(chan struct{})
	tab.at["r"] = &Restore{done: filled}
	if tab.Over() || !tab.Any() || tab.Of("r") == nil {
		t.Error("a restore that is being filled is over")
	}
	close(filled)
	if !tab.Over() || !tab.Any() {
		t.Error("a restore that packs its hot set is not over, or gone")
	}
}
