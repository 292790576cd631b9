package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	quoted = regexp.MustCompile("`([a-z][\\w.-]*(?:/[\\w.-]*)+)`")
	linked = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	mapped = regexp.MustCompile(`^((?:  )*)([a-z][\w-]*/(?: [a-z][\w-]*/)*)\s`)
)

// pages gives all pages that people read.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) < 5 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		all = append(all, found...)
	}
	return all
}

func read(t *testing.T, page string) string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestMap follows every folder of ARCHITECTURE's map, and every file that it and docs/rooms.md name.
func TestMap(t *testing.T) {
	exists := func(name string) bool {
		found, err := filepath.Glob(filepath.Join(root, name))
		return err == nil && len(found) > 0
	}
	text := read(t, filepath.Join(root, "ARCHITECTURE.md"))
	if n := strings.Count(text, "\n"); n > 200 {
		t.Errorf("ARCHITECTURE.md has %d lines", n)
	}
	var above []string
	folders := 0
	for line := range strings.Lines(text) {
		line, ok := strings.CutPrefix(line, "    ")
		m := mapped.FindStringSubmatch(line)
		if !ok || m == nil {
			continue
		}
		depth := min(len(m[1])/2, len(above))
		for _, name := range strings.Fields(m[2]) {
			above = append(above[:depth], name)
			if folders++; !exists(strings.Join(above, "")) {
				t.Errorf("ARCHITECTURE.md: there is no %s", strings.Join(above, ""))
			}
		}
	}
	files := 0
	for _, m := range quoted.FindAllStringSubmatch(text+read(t, filepath.Join(root, "docs/rooms.md")), -1) {
		if strings.HasPrefix(m[1], "store/") {
			continue // in a store, not in the sources
		}
		if name := strings.Replace(m[1], "NAME", "*", 1); !exists(name) {
			t.Errorf("ARCHITECTURE.md or docs/rooms.md: there is no %s", m[1])
		}
		files++
	}
	if folders < 80 || files < 100 {
		t.Errorf("only %d folders and %d files were found", folders, files)
	}
}

// TestLinks follows the links of all pages to other pages, and sees that each decision is in the index.
func TestLinks(t *testing.T) {
	index := read(t, filepath.Join(root, "docs/decisions/README.md"))
	for _, page := range pages(t) {
		for _, m := range linked.FindAllStringSubmatch(read(t, page), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		if name := filepath.Base(page); strings.HasPrefix(name, "20") && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/decisions/README.md does not have %s", name)
		}
	}
}
