package bench

import (
	"context"
	"errors"
	"os"
	"testing"
)

func TestBench(t *testing.T) {
	dir := t.TempDir()
	res, err := Run(t.Context(), Options{Dir: dir, Size: 8 << 20})
	if err != nil || res.Ingest <= 0 || res.Dedupe <= 0 || res.ReadCold <= 0 || res.ReadWarm <= 0 || res.Stored == 0 ||
		res.Stored > 8<<20 {
		t.Errorf("%+v, %v", res, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(canceled, Options{Dir: dir, Size: 8 << 20}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
