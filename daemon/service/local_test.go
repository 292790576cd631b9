package service

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// local is access to a store that the test has open.
type local struct{ *index.Store }

func (l local) Here(st wire.Streams) *Env {
	return &Env{Store: l.Store, Log: slog.New(slog.DiscardHandler), Streams: st}
}

func (l local) Call(context.Context, string, any, any, wire.Streams) error {
	panic("there is no daemon")
}

// open makes a store and opens it until the end of the test.
func open(t testing.TB) local {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := index.Open(
		t.Context(), dir, index.Options{FreeFloor: 1, CacheSize: 4 << 20, Cuts: gpu.Cuts, Labels: label.OfImages},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return local{s}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
