package remotes

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestHole has a bucket that takes connections and never answers: who asks for it waits as long as he wants to, and not
// for others.
func TestHole(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait()
		for _, c := range conns {
			c.Close()
		}
	})
	t.Setenv("AWS_ACCESS_KEY_ID", "a")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "b")
	dir := emptyStore(t)
	text := `{"address": "s3://bucket?endpoint=http://` + l.Addr().String() + `&region=x"}`
	if err := os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Of(dir, &index.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	began := time.Now()
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if _, err := r.Store(ctx); err == nil {
				t.Error("a remote store was opened")
			}
		})
	}
	asking.Wait()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("four who wanted to wait half a second each took %v", took)
	}
}

// TestNoRemote is a store without one, and one whose file is damaged.
func TestNoRemote(t *testing.T) {
	dir := emptyStore(t)
	if r, err := Of(dir, &index.Options{}, slog.New(slog.DiscardHandler)); r != nil || err != nil {
		t.Errorf("%v, %v", r, err)
	}
	if err := os.WriteFile(filepath.Join(dir, FileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Of(dir, &index.Options{}, slog.New(slog.DiscardHandler)); index.ClassOf(err) != index.Corrupt {
		t.Errorf("damaged: %v", err)
	}
}

func emptyStore(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	return dir
}
