package criuimg_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/tests/criukinds"
)

// Whatever images may hold, memory is brought as without it, or it is refused by
// name; nothing is called corrupt that may be of a later CRIU.
func TestKinds(t *testing.T) {
	for _, k := range criukinds.All() {
		t.Run(k.Name, func(t *testing.T) {
			if used, _, err := criuimg.CUDA(k.Images); used || err != nil {
				t.Errorf("CUDA: %v, %v", used, err)
			}
			if _, err := criuimg.Eager(k.Images, 0); errors.Is(err, criuimg.ErrCorrupt) {
				t.Errorf("eager pieces: %v", err)
			}
			c, err := criuimg.Load(k.Images)
			if k.Refused != "" {
				if err == nil || errors.Is(err, criuimg.ErrCorrupt) || !strings.Contains(err.Error(), k.Refused) {
					t.Errorf("got %v, want a refusal with %q", err, k.Refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := []criuimg.Range{{Start: criukinds.Start, End: criukinds.End, File: "pages-1.img"}}
			if len(c.Tasks) != 1 || c.Tasks[0].PID != criukinds.PID || !reflect.DeepEqual(c.Tasks[0].Ranges, want) {
				t.Errorf("tasks %+v", c.Tasks)
			}
		})
	}
}
