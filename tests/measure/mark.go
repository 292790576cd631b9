package measure

import (
	"fmt"
	"time"

	"github.com/gpucr/gpucr-fs/restore"
)

// Mark gives the time of a step of a restore.
func Mark(t *restore.Timeline, name string) (time.Time, error) {
	d, ok := t.At(name)
	if !ok {
		return time.Time{}, fmt.Errorf("the timeline does not tell of %q", name)
	}
	return t.Started.Add(d), nil
}
