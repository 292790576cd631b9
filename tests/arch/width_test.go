package arch

import (
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxWidth bounds a line of source in columns; a tab takes tabWidth.
const (
	maxWidth = 120
	tabWidth = 4
)

// sourceKinds are the extensions of files that people write and read as code.
var sourceKinds = []string{
	".go", ".s", ".c", ".h", ".sh", ".py", ".js", ".css", ".html", ".proto", ".yaml", ".service", noExtension,
}

// noExtension stands for the sources whose names have no extension: sourceNames.
const noExtension = ""

var sourceNames = []string{"Makefile", ".ci/run", "packaging/Containerfile"}

// wideGenerated are the folders whose files protoc writes.
var wideGenerated = []string{"index/manifest/manifestpb", "kfd/image/imagepb"}

// TestLinesAreNarrow: no line of a source is wider than maxWidth, but for what protoc writes.
func TestLinesAreNarrow(t *testing.T) {
	seen := map[string]int{}
	sources(t, sourceKinds, func(name string, text []byte) {
		kind := path.Ext(name)
		if kind == noExtension && !slices.Contains(sourceNames, name) {
			return
		}
		seen[kind]++
		if slices.Contains(wideGenerated, path.Dir(name)) && generated(text) {
			return
		}
		for i, line := range strings.Split(string(text), "\n") {
			if w := width(line); w > maxWidth {
				t.Errorf("%s:%d has %d columns, at most %d are allowed", name, i+1, w, maxWidth)
			}
		}
	})
	for _, kind := range sourceKinds {
		if seen[kind] == 0 {
			t.Errorf("no source of kind %q was looked at", kind)
		}
	}
	if seen[noExtension] != len(sourceNames) {
		t.Errorf("%d of %v were looked at", seen[noExtension], sourceNames)
	}
}

func width(line string) int {
	return utf8.RuneCountInString(line) + strings.Count(line, "\t")*(tabWidth-1)
}
