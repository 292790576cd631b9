package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/lazytarget"
)

const root = "../.."

var (
	program cli.Program
	target  string
	path    string // PATH with program and criu
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "docs-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = build(dir)
	}
	var criu string
	if err == nil {
		criu, err = cli.FindCRIU()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cli.CloseInheritedOnExec()
	syscall.Setsid() // the leader of the test's session may be outside of its pid namespace
	path = filepath.Dir(string(program)) + ":" + filepath.Dir(criu) + ":" + os.Getenv("PATH")
	os.Setenv("GPUCR_FS_CRIU", criu)
	os.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
	return m.Run()
}

// build makes the programs in dir, or in $DOCS_BUILD to be found there by $DOCS_BUILT on a machine that builds nothing.
func build(dir string) (err error) {
	if built := os.Getenv("DOCS_BUILT"); built != "" {
		program, target = cli.Program(filepath.Join(built, "gpucr-fs")), filepath.Join(built, "lazytarget")
		return nil
	}
	if to := os.Getenv("DOCS_BUILD"); to != "" {
		dir = to
	}
	if program, err = cli.Build(dir); err == nil {
		target, err = lazytarget.Build(dir)
	}
	return err
}

// programs begin the lines that count as commands although they are indented more than others.
var programs = regexp.MustCompile(`^(gpucr-fs|gpucr-runc|criu|runc|podman|ctr|make|go) `)

// commands gives the lines of a page that are indented or fenced as commands are, without their comments.
func commands(t *testing.T, page string) (lines []string) {
	t.Helper()
	fenced := false
	for line := range strings.Lines(read(t, filepath.Join(root, page))) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		text, ok := strings.CutPrefix(line, "    ")
		if !ok && !fenced {
			continue
		}
		if inner := strings.TrimLeft(text, " "); inner != text && !programs.MatchString(inner) {
			continue // goes on with the line above it
		}
		text, _, _ = strings.Cut(" "+text, " #")
		if text = strings.TrimSpace(text); text != "" {
			lines = append(lines, text)
		}
	}
	return lines
}

var (
	call = regexp.MustCompile(`(?:^|[\s|])gpucr-fs ((?:--?\S+ )*)([a-z][a-z-]*)((?: [^|&;]*)?)`)
	flag = regexp.MustCompile(`(?:^|\s)(--?[a-zA-Z][a-zA-Z-]*)`)
)

// TestCommandsExist looks up each gpucr-fs command of README and manual, and its options, in the program's own help.
func TestCommandsExist(t *testing.T) {
	found, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil || len(found) < 5 {
		t.Fatalf("%d pages, %v", len(found), err)
	}
	helps := map[string]string{}
	help := func(words ...string) string {
		key := strings.Join(words, " ")
		if helps[key] == "" {
			out, err := exec.Command(string(program), append(words, "--help")...).CombinedOutput()
			helps[key] = string(out)
			if err != nil {
				helps[key] = "none"
			}
		}
		return helps[key]
	}
	seen := 0
	for _, page := range append(found, filepath.Join(root, "README.md")) {
		name, _ := filepath.Rel(root, page)
		for _, line := range commands(t, name) {
			for _, m := range call.FindAllStringSubmatch(line, -1) {
				if m[0] == "gpucr-fs root 1" {
					continue // the first line of a bucket's root objects
				}
				words := []string{m[2]}
				text := help(words...)
				if text == "none" || !strings.Contains(text, "gpucr-fs "+m[2]) {
					t.Errorf("%s: %q: there is no command %s", name, line, m[2])
					continue
				}
				own, _, _ := strings.Cut(m[3]+" ", " -- ")
				if next := strings.Fields(own); strings.Contains(text, "Available Commands:") && len(next) > 0 {
					text = help(append(words, next[0])...)
				}
				for _, f := range flag.FindAllStringSubmatch(m[1]+own, -1) {
					if !regexp.MustCompile(`(?m)^ +(-\w, )?`+f[1]+`\b`).MatchString(text) && !passed[m[2]][f[1]] {
						t.Errorf("%s: %q: %s has no option %s", name, line, m[2], f[1])
					}
				}
				seen++
			}
		}
	}
	if seen < 60 {
		t.Errorf("only %d commands were found", seen)
	}
}

// passed are options of criu's that commands hand on, and that their help tells in words.
var passed = map[string]map[string]bool{
	"dump":       {"-t": true},
	"lazy-pages": {"-d": true, "-D": true, "-W": true},
}
