package service

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/index"
)

// muchLater is after all checkpoints of these tests.
var muchLater = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// history is five checkpoints a day apart: base ← next are a chain, dead was never sealed, now is being written on
// top of old.
func history() []index.Info {
	day := func(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }
	return []index.Info{
		{Name: "old", State: index.Sealed, SealedAt: day(1), Children: []string{"now"}},
		{Name: "base", State: index.Sealed, SealedAt: day(2), Children: []string{"next"}, Tags: []string{"golden"}},
		{Name: "dead", State: index.Incomplete},
		{Name: "lone", ID: "1d", State: index.Sealed, SealedAt: day(3), Tags: []string{"x"}},
		{Name: "next", State: index.Sealed, SealedAt: day(4), Parent: "base"},
		{Name: "now", State: index.Writing, Parent: "old"},
		{Name: "last", State: index.Sealed, SealedAt: day(5)},
	}
}

func TestSelectRemoved(t *testing.T) {
	for _, c := range []struct {
		name    string
		r       RemoveRequest
		removed string // names, or
		class   index.Class
		text    string // part of the error
	}{
		{name: "by name", r: RemoveRequest{Names: []string{"lone", "dead", "lone"}}, removed: "lone dead"},
		{name: "by tag", r: RemoveRequest{Tag: "x"}, removed: "lone"},
		{name: "chain", r: RemoveRequest{Names: []string{"base", "next"}}, removed: "base next"},
		{name: "parent", r: RemoveRequest{Names: []string{"base"}}, class: index.InUse, text: "next"},
		{name: "parent of a draft", r: RemoveRequest{Names: []string{"old"}}, class: index.InUse, text: "now"},
		{name: "draft", r: RemoveRequest{Names: []string{"now"}}, class: index.InUse, text: "written"},
		{name: "no such name", r: RemoveRequest{Names: []string{"lone", "none"}}, class: index.NotFound, text: "none"},
		{name: "as shown", r: RemoveRequest{Names: []string{"lone"}, IDs: []string{"1d"}}, removed: "lone"},
		{name: "renamed since", r: RemoveRequest{Names: []string{"lone"}, IDs: []string{"2d"}},
			class: index.InUse, text: "another"},
		{name: "ids of others", r: RemoveRequest{Names: []string{"lone"}, IDs: []string{"1d", "2d"}},
			class: index.Invalid, text: "ids"},
		{name: "no such tag", r: RemoveRequest{Tag: "none"}, class: index.NotFound, text: "none"},
		{name: "two ways", r: RemoveRequest{Tag: "x", Names: []string{"lone"}},
			class: index.Invalid, text: "not clear which"},
		{name: "no way", class: index.Invalid, text: "not clear which"},
		{name: "empty policy", r: RemoveRequest{Keep: &Policy{}}, class: index.Invalid, text: "not clear which"},
		{name: "last 1", r: RemoveRequest{Keep: &Policy{Last: 1}}, removed: "base lone next"}, // old is needed by now
		{name: "last 2", r: RemoveRequest{Keep: &Policy{Last: 2}}, removed: "lone"},           // base is needed by next
		{name: "all", r: RemoveRequest{Keep: &Policy{Last: 99}}, removed: ""},
		{name: "within", r: RemoveRequest{Keep: &Policy{Within: 48 * time.Hour}}, removed: ""},
		{name: "within a day", r: RemoveRequest{Keep: &Policy{Within: 23 * time.Hour}}, removed: "base lone next"},
		{name: "tag", r: RemoveRequest{Keep: &Policy{Tags: []string{"x", "none"}}}, removed: "base next last"},
		{name: "tag and last", r: RemoveRequest{Keep: &Policy{Last: 1, Tags: []string{"golden"}}},
			removed: "lone next"},
		{name: "keeps nothing", r: RemoveRequest{Keep: &Policy{Tags: []string{"none"}}},
			class: index.Invalid, text: "keep nothing"},
		{name: "negative", r: RemoveRequest{Keep: &Policy{Last: -1}}, class: index.Invalid, text: "negative"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, err := selectRemoved(history(), c.r, muchLater)
			if c.text != "" {
				if index.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.text) {
					t.Errorf("got %v (%v)", err, index.ClassOf(err))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, i := range res.Removed {
				names = append(names, i.Name)
			}
			if got := strings.Join(names, " "); got != c.removed {
				t.Errorf("removes %q, want %q", got, c.removed)
			}
			for _, k := range res.Kept {
				if slices.Contains(names, k.Name) || k.Reason == "" {
					t.Errorf("kept %+v", k)
				}
			}
		})
	}
	res, err := selectRemoved(nil, RemoveRequest{Keep: &Policy{Last: 3}}, muchLater)
	if err != nil || len(res.Removed) != 0 {
		t.Errorf("an empty store: %+v, %v", res, err)
	}
}

// What a restore brings memory from is refused by name, and kept by a policy with what it builds on. A policy that is
// applied again removes nothing but what was shown.
func TestKeepWhileRestored(t *testing.T) {
	all := history()
	all[4].ID, all[4].Restoring = "4d", true // next, built on base
	_, err := selectRemoved(all, RemoveRequest{Names: []string{"lone", "next"}, DryRun: true}, muchLater)
	if index.ClassOf(err) != index.InUse || !strings.Contains(err.Error(), "restored") || index.HintOf(err) == "" {
		t.Errorf("by name: %v", err)
	}
	for _, dry := range []bool{true, false} {
		res, err := selectRemoved(all, RemoveRequest{Keep: &Policy{Last: 1}, DryRun: dry}, muchLater)
		if err != nil || len(res.Removed) != 1 || res.Removed[0].Name != "lone" {
			t.Errorf("by a policy: %+v, %v", res, err)
		}
		want := Kept{Name: "next", Reason: index.WhyKept}
		parent := Kept{Name: "base", Reason: "parent of next"}
		if !slices.Contains(res.Kept, want) || !slices.Contains(res.Kept, parent) {
			t.Errorf("kept %+v", res.Kept)
		}
	}
	// Before it was restored both were shown; lone was not.
	res, err := selectRemoved(
		all, RemoveRequest{Keep: &Policy{Last: 1}, IDs: []string{"4d", "0d"}}, muchLater,
	)
	if err != nil || len(res.Removed) != 0 {
		t.Errorf("applied again: %+v, %v", res, err)
	}
}

// What was sealed while the clock was ahead takes no place of a rule, does not make all others old, and is kept.
func TestKeepBesideTheFuture(t *testing.T) {
	all := history()
	next := all[6]
	next.Name, next.SealedAt = "ahead", muchLater.AddDate(30, 0, 0)
	all = append(all, next)
	for _, c := range []struct {
		name    string
		keep    Policy
		removed string
	}{
		{"last", Policy{Last: 1}, "base lone next"},
		{"within", Policy{Within: 24 * time.Hour}, "lone"},
		{"daily", Policy{Daily: 1}, "base lone next"},
		{"none", Policy{Tags: []string{"none"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, err := selectRemoved(all, RemoveRequest{Keep: &c.keep}, muchLater)
			if c.removed == "" {
				if index.ClassOf(err) != index.Invalid {
					t.Errorf("%+v, %v", res, err)
				}
				return
			}
			var names []string
			for _, i := range res.Removed {
				names = append(names, i.Name)
			}
			if got := strings.Join(names, " "); err != nil || got != c.removed {
				t.Errorf("removes %q, want %q (%v)", got, c.removed, err)
			}
		})
	}
	// A clock that was set back to long ago finds all of them in the future.
	early := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	res, err := selectRemoved(all, RemoveRequest{Keep: &Policy{Last: 1}}, early)
	if err != nil || len(res.Removed) > 0 {
		t.Errorf("with a clock of long ago: %+v, %v", res, err)
	}
}

// Rules by the calendar keep the newest of each stretch that has one; stretches without any are not counted.
func TestKeepByCalendar(t *testing.T) {
	local := time.Local
	time.Local = time.UTC
	t.Cleanup(func() { time.Local = local })
	var all []index.Info
	for _, at := range []string{
		"2025-12-28T10:00:00Z", // Sunday, the last day of a week
		"2025-12-29T10:00:00Z", // Monday: ISO week 1 of 2026
		"2026-01-01T09:00:00Z",
		"2026-01-01T23:10:00Z",
		"2026-01-01T23:50:00Z",
		"2026-01-03T00:10:00Z",
		"2026-02-14T12:00:00Z",
	} {
		when, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		all = append(
			all,
			index.Info{Name: when.Format("0102-1504"), State: index.Sealed, Created: when, SealedAt: when},
		)
	}
	for _, c := range []struct {
		name string
		keep Policy
		want string
	}{
		{"one hour", Policy{Hourly: 1}, "0214-1200"},
		{"hours", Policy{Hourly: 3}, "0101-2350 0103-0010 0214-1200"},
		{"days", Policy{Daily: 3}, "0101-2350 0103-0010 0214-1200"},
		{"weeks", Policy{Weekly: 2}, "0103-0010 0214-1200"},
		{"weeks across the year", Policy{Weekly: 3}, "1228-1000 0103-0010 0214-1200"},
		{"months", Policy{Monthly: 2}, "0103-0010 0214-1200"},
		{"more than there are", Policy{Monthly: 9}, "1228-1000 1229-1000 0103-0010 0214-1200"}, // with the oldest
		{"one more than there are", Policy{Weekly: 5}, "1228-1000 0103-0010 0214-1200"},
		{"any rule keeps", Policy{Last: 1, Monthly: 3, Hourly: 2}, "1229-1000 0103-0010 0214-1200"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, err := selectRemoved(all, RemoveRequest{Keep: &c.keep}, muchLater)
			if err != nil {
				t.Fatal(err)
			}
			var kept []string
			for _, k := range res.Kept {
				kept = append(kept, k.Name)
			}
			if got := strings.Join(kept, " "); got != c.want {
				t.Errorf("kept %s, want %s", got, c.want)
			}
			if len(res.Kept)+len(res.Removed) != len(all) {
				t.Errorf("%d kept and %d removed of %d", len(res.Kept), len(res.Removed), len(all))
			}
		})
	}
	all[0].Labels, all[2].Labels = map[string]string{"host": "a"}, map[string]string{"host": "a"}
	all[0].Name, all[2].Parent = "base", ""
	all[6].Parent = "base" // whoever a rule does not see still needs its parent
	ofA := RemoveRequest{Keep: &Policy{Labels: label.Filter{"host=a"}, Last: 1}}
	res, err := selectRemoved(all, ofA, muchLater)
	if err != nil || len(res.Removed) != 0 || len(res.Kept) != 2 {
		t.Errorf("by label: %+v, %v", res, err)
	}
	all[6].Parent = ""
	if res, err = selectRemoved(all, ofA, muchLater); err != nil ||
		len(res.Removed) != 1 ||
		res.Removed[0].Name != "base" {
		t.Errorf("by label: %+v, %v", res, err)
	}
	_, err = selectRemoved(all, RemoveRequest{Keep: &Policy{Daily: -1}}, muchLater)
	if index.ClassOf(err) != index.Invalid {
		t.Errorf("a negative rule: %v", err)
	}
}
