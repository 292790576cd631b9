package feed

import (
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/restore/uffd"
)

func TestMissingBeforeProcessesAreHandedOver(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		r    uffd.Report
		want int64
	}{
		{uffd.Report{}, 100},
		{uffd.Report{MissingBytes: 40, CopiedBytes: 10}, 90},
		{uffd.Report{MissingBytes: 40, CopiedBytes: 10, ZeroBytes: 5, Finished: now}, 40},
		{uffd.Report{CopiedBytes: 100, Finished: now}, 0},
		{uffd.Report{MissingBytes: 5, CopiedBytes: 100}, 5},
	} {
		if got := missing(c.r, 100); got != c.want {
			t.Errorf("%+v: %d bytes to come, want %d", c.r, got, c.want)
		}
	}
}
