package main

import (
	"io"
	"slices"
	"strings"
	"testing"
)

// What the driver prints of tests that pass, fail, are left out, die without a word, and fail after they have passed in
// another flavor.
const output = `=== Run 1/5 ===------------- zdtm/static/a
========================== Run zdtm/static/a in h ==========================
========================= Test zdtm/static/a PASS ==========================
Skipping zdtm/static/skipped (manual run only)
=== Run 3/5 =========------- zdtm/static/b
################### Test zdtm/static/b FAIL at CRIU restore ################
=== Run 4/5 ============---- zdtm/static/silent
=== Run 5/5 ================ zdtm/static/twice
========================= Test zdtm/static/twice PASS ======================
##################### 3 TEST(S) FAILED (TOTAL 5/SKIPPED 1) #####################
 * zdtm/static/b(h)
 * zdtm/static/silent(unknown)
 * zdtm/static/twice(uns)
`

func TestTally(t *testing.T) {
	mount, plain := newTally(), newTally()
	if err := mount.follow(strings.NewReader(output), io.Discard); err != nil {
		t.Fatal(err)
	}
	if mount.passed() != 1 || len(mount.results) != 4 || !mount.results["zdtm/static/a"].passed {
		t.Errorf("%s: %v", mount, mount.results)
	}
	other := strings.ReplaceAll(output, "=== Run 3/5 =========------- zdtm/static/b\n",
		"=== Run 3/5 =========------- zdtm/static/b\n==== Test zdtm/static/b PASS ====\n")
	other = strings.ReplaceAll(strings.ReplaceAll(other, " * zdtm/static/b(h)\n", ""), " * zdtm/static/twice(uns)\n",
		"")
	if err := plain.follow(strings.NewReader(other), io.Discard); err != nil {
		t.Fatal(err)
	}
	if got := mount.worse(plain); !slices.Equal(got, []string{"zdtm/static/b", "zdtm/static/twice"}) {
		t.Errorf("failed in the mount only: %v", got)
	}
	if got := plain.worse(mount); len(got) != 0 {
		t.Errorf("failed in the plain directory only: %v", got)
	}
}

func TestArguments(t *testing.T) {
	args := []string{"--log-file", "dump.log", "--images-dir", "dump/zdtm/static/a/5/1", "--no-default-config",
		"--tree", "5"}
	if got := value(args, "--images-dir"); got != "dump/zdtm/static/a/5/1" {
		t.Error(got)
	}
	if got := value(args, "--none") + value([]string{"--last"}, "--last"); got != "" {
		t.Error(got)
	}
	got := without(without(args, "--no-default-config"), "--log-file", "dump.log")
	if want := []string{"--images-dir", "dump/zdtm/static/a/5/1", "--tree", "5"}; !slices.Equal(got, want) {
		t.Error(got)
	}
	if len(args) != 7 || args[0] != "--log-file" {
		t.Error("the arguments themselves have changed")
	}
}
