package arch

import (
	"bytes"
	"go/doc"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestPackagesSayWhatTheyAreFor: go doc of every package begins with a sentence: "Package NAME ...", and of a program
// "Command ..." or the program's name. One file has it, and it is none of tests, which go doc does not read.
func TestPackagesSayWhatTheyAreFor(t *testing.T) {
	type pkg struct {
		name  string // as it is declared, of a package of tests alone without its _test
		texts []string
	}
	all := map[string]*pkg{}
	sources(t, []string{".go"}, func(name string, text []byte) {
		dir := path.Dir(name)
		if slices.Contains(strings.Split(dir, "/"), "testdata") {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, bytes.NewReader(text),
			parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Error(err)
			return
		}
		if all[dir] == nil {
			all[dir] = &pkg{name: strings.TrimSuffix(file.Name.Name, "_test")}
		}
		if text := strings.TrimSpace(file.Doc.Text()); text != "" && !strings.HasSuffix(name, "_test.go") {
			all[dir].texts = append(all[dir].texts, text)
		}
	})
	if len(all) < 100 {
		t.Errorf("only %d packages were found", len(all))
	}
	for dir, p := range all {
		if len(p.texts) != 1 {
			t.Errorf("%s: %d files that are no tests have a package comment, one is to have it", dir, len(p.texts))
			continue
		}
		starts := []string{"Package " + p.name + " "}
		if p.name == "main" {
			program := path.Base(dir)
			starts = []string{"Command " + program + " ", string(unicode.ToUpper(rune(program[0]))) + program[1:] + " "}
		}
		sentence := new(doc.Package).Synopsis(p.texts[0])
		begins := slices.ContainsFunc(starts, func(s string) bool { return strings.HasPrefix(sentence, s) })
		if !begins || !strings.HasSuffix(sentence, ".") || len(strings.Fields(sentence)) < 5 {
			t.Errorf("%s: go doc begins with %q; it is to be a sentence that begins with %q", dir, sentence, starts)
		}
	}
}
