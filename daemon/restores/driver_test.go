package restores

import (
	"errors"
	"io"
	"log/slog"
	"testing"
)

type closes struct{ n int }

func (c *closes) Close() error {
	c.n++
	return nil
}

// The driver is loaded once, stays until the end, and is tried no more where it cannot be loaded.
func TestDriverIsKept(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	var loaded closes
	loads := 0
	d := NewDriver(func() (io.Closer, error) { loads++; return &loaded, nil }, log)
	d.keep()
	d.keep()
	if loads != 1 || loaded.n != 0 {
		t.Errorf("loaded %d times, ended %d times", loads, loaded.n)
	}
	d.Close()
	d.keep()
	if loads != 1 || loaded.n != 1 {
		t.Errorf("after the end: loaded %d times, ended %d times", loads, loaded.n)
	}
	loads = 0
	d = NewDriver(func() (io.Closer, error) { loads++; return nil, errors.New("no driver") }, log)
	d.keep()
	d.keep()
	d.Close()
	if loads != 1 {
		t.Errorf("a driver that is not there was looked for %d times", loads)
	}
	NewDriver(nil, log).keep()
}
