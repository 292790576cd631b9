package inspect

import (
	"testing"

	"github.com/gpucr/gpucr-fs/tests/criukinds"
)

// Whatever images may hold, they are shown.
func TestKinds(t *testing.T) {
	for _, k := range criukinds.All() {
		r, err := Read(k.Images, ".")
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
			continue
		}
		if len(r.Processes) != 1 || r.Processes[0].PID != criukinds.PID {
			t.Errorf("%s: processes %+v", k.Name, r.Processes)
		}
		if _, err := XState(k.Images, r); err != nil {
			t.Errorf("%s: extended state: %v", k.Name, err)
		}
	}
}

// Guard pages are no mappings.
func TestGuards(t *testing.T) {
	for _, k := range criukinds.All() {
		m := uint64(criukinds.End - criukinds.Start)
		if k.Name == "guards" {
			m += 8 << 12
		}
		if k.Name != "guards" && k.Name != "a guard before everything" {
			continue
		}
		r, err := Read(k.Images, ".")
		if err != nil || r.Total.Mapped != m {
			t.Errorf("%s: %+v, %v, want %d bytes mapped", k.Name, r, err, m)
		}
	}
}
