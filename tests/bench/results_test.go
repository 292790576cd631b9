package main

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	r := newResults()
	r.add("import gpucr-fs", 2)
	r.add("import restic", 10)
	r.add("import borg", 7)
	r.add("import cp + sync", 0.9)
	r.add("stored gpucr-fs", 100)
	r.add("stored restic", 100)
	r.add("read cold mount", 300)
	r.add("read cold desync", 100)
	r.judge()
	want := map[string]bool{"borg": true, "cp -r": false, "restic's": true, "mount-index": false}
	if len(r.Targets) != len(want) {
		t.Errorf("%d targets judged, want %d: %+v", len(r.Targets), len(want), r.Targets)
	}
	for _, target := range r.Targets {
		for word, pass := range want {
			if strings.Contains(target.Name, word) && target.Pass != pass {
				t.Errorf("%s: %v against %v passes: %v, want %v", target.Name, target.Value, target.Bound, target.Pass,
					pass)
			}
		}
	}
	var out strings.Builder
	r.print(&out)
	if strings.Count(out.String(), "| PASS |") != 2 || strings.Count(out.String(), "| FAIL |") != 2 {
		t.Errorf("want two lines with PASS and two with FAIL:\n%s", out.String())
	}
}
