package archive

import (
	"log/slog"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreTopFunction("github.com/dgraph-io/ristretto/v2/z.init.0.func1"))
}

func newStore(t testing.TB) *index.Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := index.Open(t.Context(), dir, index.Options{Logger: slog.New(slog.DiscardHandler), FreeFloor: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
