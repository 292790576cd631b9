package model

import (
	"os"
	"path/filepath"
	"testing"
)

// TestKnownPrograms runs the short programs in testdata, each of which has found a defect of the store or of the model.
func TestKnownPrograms(t *testing.T) {
	dir := scratch(t)
	files, err := filepath.Glob("testdata/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no programs: %v", err)
	}
	var n counts
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			p, err := parseProgram(f)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := execute(p, filepath.Join(dir, "p"), &n); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
