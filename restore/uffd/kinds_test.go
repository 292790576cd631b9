package uffd

import (
	"reflect"
	"testing"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/tests/criukinds"
)

// Whatever kinds of memory images hold, a plan can be made of them, the guardian gets it, and it fills the same pages.
func TestKinds(t *testing.T) {
	for _, k := range criukinds.All() {
		c, err := criuimg.Load(k.Images)
		if k.Refused != "" {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
			continue
		}
		p := NewPlan(c)
		b, err := p.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var got Plan
		if err := got.UnmarshalBinary(b); err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
		if err := got.Validate(); err != nil || !reflect.DeepEqual(&got, p) ||
			got.Bytes() != criukinds.End-criukinds.Start {
			t.Errorf("%s: %+v, %v", k.Name, got, err)
		}
	}
}
