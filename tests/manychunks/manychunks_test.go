package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSmall holds a small bucket to the bounds of a large one: requests to the first page, and memory.
func TestSmall(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "manychunks")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", exe, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const checkpoints, chunks = 40, 5000
	all, err := measure(t.Context(), exe, checkpoints, chunks, func() {})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		t.Logf("%+v", m)
		limit := int64(512 << 20)
		if m.Task == "gc" {
			limit = 1 << 30
		}
		if m.Peak > limit {
			t.Errorf("%s took %d MiB", m.Task, m.Peak>>20)
		}
		if m.Task == "first" && m.Requests >= 20 {
			t.Errorf("the first page took %d requests", m.Requests)
		}
	}
	if len(all) != len(tasks) {
		t.Errorf("%d of %d tasks", len(all), len(tasks))
	}
}
