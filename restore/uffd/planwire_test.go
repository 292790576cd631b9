package uffd

import (
	"reflect"
	"testing"

	"github.com/gpucr/gpucr-fs/prefetch"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

func wirePlan() *Plan {
	return &Plan{Files: []string{"pages-1.img", "parent/pages-1.img"}, Tasks: []PlanTask{
		{PID: 7, VMAs: []criuimg.VMA{{Start: pageSize, End: 9 * pageSize, Prot: 3, Flags: 0x22, Status: 513,
			Madvise: 1 << 14}},
			Ranges: []PlanRange{{pageSize, 3 * pageSize, 0, 0}, {4 * pageSize, 5 * pageSize, 1, 1 << 40}},
			First:  []prefetch.Range{{File: 1, Off: 1 << 40, Len: pageSize}}},
		{PID: 8, Dead: true, VMAs: []criuimg.VMA{}, Ranges: []PlanRange{}},
	}}
}

func TestPlanWire(t *testing.T) {
	want := wirePlan()
	b, err := want.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var got Plan
	if err := got.UnmarshalBinary(b); err != nil || !reflect.DeepEqual(&got, want) {
		t.Errorf("%v: %+v", err, got)
	}
	before := len(b) - 8*(2+3) // what an earlier build writes, without First
	for n := range b {
		if err := new(Plan).UnmarshalBinary(b[:n]); (err == nil) != (n == before) {
			t.Fatalf("the first %d of %d bytes: %v", n, len(b), err)
		}
	}
	if err := new(Plan).UnmarshalBinary(append(b, 0)); err == nil {
		t.Error("a plan may be followed by something")
	}
}

func FuzzPlan(f *testing.F) {
	b, _ := wirePlan().MarshalBinary()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		var p, again Plan
		if p.UnmarshalBinary(b) != nil {
			return
		}
		_ = p.Validate()
		b, err := p.MarshalBinary()
		if err == nil {
			err = again.UnmarshalBinary(b)
		}
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Fatalf("%v: %+v became %+v", err, p, again)
		}
	})
}
