package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	quoted = regexp.MustCompile("`([a-z][\\w.-]*(?:/[\\w.-]*)+)`")
	linked = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	mapped = regexp.MustCompile(`^((?:  )*)([a-z][\w/-]*/(?: [a-z][\w-]*/)*)\s`)
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

// TestMap follows every folder of ARCHITECTURE's map, and every file that it and docs/rooms.md name. Every package is
// on the map.
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
	onMap := map[string]bool{}
	for line := range strings.Lines(text) {
		line, ok := strings.CutPrefix(line, "    ")
		m := mapped.FindStringSubmatch(line)
		if !ok || m == nil {
			continue
		}
		depth := min(len(m[1])/2, len(above))
		for _, name := range strings.Fields(m[2]) {
			above = append(above[:depth], name)
			folder := strings.Join(above, "")
			if onMap[folder] = true; !exists(folder) {
				t.Errorf("ARCHITECTURE.md: there is no %s", folder)
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
	if len(onMap) < 80 || files < 100 {
		t.Errorf("only %d folders and %d files were found", len(onMap), files)
	}
	for _, dir := range packages(t) {
		if !onMap[dir+"/"] && !strings.HasPrefix(dir, "tests/") { // these share a line
			t.Errorf("ARCHITECTURE.md: the map lacks %s", dir)
		}
	}
}

// packages gives the folders of all packages, from the root of the repository.
func packages(t *testing.T) []string {
	t.Helper()
	list := exec.Command("go", "list", "-f", "{{.Dir}}", "./...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dirs := strings.Fields(string(out))
	for i, dir := range dirs {
		if dirs[i], err = filepath.Rel(top, dir); err != nil {
			t.Fatal(err)
		}
	}
	return dirs
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

// TestLines sees that lines are no wider than a screen, and that the README stays short.
func TestLines(t *testing.T) {
	for _, page := range pages(t) {
		for i, line := range strings.Split(read(t, page), "\n") {
			if n := utf8.RuneCountInString(line); n > 120 {
				t.Errorf("%s:%d has %d columns", page, i+1, n)
			}
		}
	}
	if n := strings.Count(read(t, filepath.Join(root, "README.md")), "\n"); n >= 150 {
		t.Errorf("README.md has %d lines", n)
	}
}
