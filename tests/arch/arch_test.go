package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gpucr/gpucr-fs"

// mayImport gives, for each top-level folder, the other top-level folders its packages may import. A folder that is not
// here is refused, so that a new one is a decision. Tests of a package may import no more than the package, except from
// tests/.
var mayImport = map[string][]string{
	"bounded":   {},
	"index":     {},
	"kfd":       {"bounded"},
	"cuda":      {},
	"preflight": {},
	"park":      {},
	"fs":        {"index"},
	"archive":   {"index"},
	"prefetch":  {"index"},
	"restore":   {"bounded", "index", "prefetch", "kfd"},
	"daemon":    {"bounded", "index", "fs", "archive", "prefetch", "restore", "kfd"},
	"cmd":       {"index", "kfd", "fs", "archive", "prefetch", "restore", "daemon", "cuda", "preflight", "park"},
	"tests":     {"index", "kfd", "fs", "archive", "prefetch", "restore", "daemon", "cuda", "preflight", "park"},
}

// daemonMayImport gives, for each package of daemon/, the others of daemon/ that it may import: those that it stands
// on.
var daemonMayImport = map[string][]string{
	"wire":      {},
	"lifetime":  {},
	"profiles":  {},
	"inspect":   {},
	"gpu":       {},
	"sharing":   {"gpu"},
	"bench":     {"wire"},
	"check":     {"gpu", "inspect"},
	"label":     {"inspect"},
	"talk":      {"lifetime", "wire"},
	"layout":    {},
	"web":       {"wire"},
	"mounts":    {"lifetime", "web"},
	"restores":  {"profiles", "lifetime", "wire"},
	"fill":      {"profiles", "talk", "wire"},
	"remotes":   {},
	"retention": {"label"},
	"uploads":   {"remotes", "lifetime"},
	"selection": {"label"},
	"service": {"check", "gpu", "inspect", "label", "mounts", "profiles", "remotes", "restores", "retention",
		"selection", "sharing", "lifetime", "talk", "uploads", "wire"},
	"page":   {"gpu", "inspect", "layout", "profiles", "restores", "service", "sharing", "wire"},
	"client": {"gpu", "label", "mounts", "remotes", "restores", "service", "talk", "wire"},
	"lifecycle": {"client", "fill", "gpu", "label", "mounts", "page", "remotes", "restores", "service", "lifetime",
		"talk", "uploads", "web", "wire"},
}

// indexMayImport gives, for each package of index/, the others of index/ that it may import: those that it stands on.
var indexMayImport = map[string][]string{
	"storage":             {},
	"chunk":               {},
	"crc32c":              {},
	"cipher":              {"arena", "chunk"},
	"keyring":             {"cipher"},
	"arena":               {},
	"keys/sigbus":         {},
	"manifest/manifestpb": {},
	"manifest":            {"chunk", "manifest/manifestpb"},
	"pack":                {"chunk", "cipher", "crc32c", "storage"},
	"keys":                {"chunk", "cipher", "crc32c", "keys/sigbus", "pack", "storage"},
	"keys/keystest":       {},
	"keyring/keyringtest": {},
	"fault":               {"keys", "manifest", "pack"},
	"scratch":             {},
	"distant":             {"chunk", "cipher", "fault", "keys", "pack", "remote/nodecache", "remote/object"},
	"learned":             {"chunk", "cipher", "crc32c", "pack", "remote/object", "storage"},
	"pageset":             {"pack"},
	"aside":               {"fault", "pack"},
	"live":                {"chunk", "crc32c", "pack"},
	"latest":              {"chunk", "keys", "manifest", "pack"},
	"chunks": {
		"arena",
		"aside",
		"chunk",
		"cipher",
		"crc32c",
		"distant",
		"fault",
		"keys",
		"latest",
		"live",
		"manifest",
		"pack",
		"pageset",
		"remote/object",
	},
	"roots": {"chunks", "cipher", "fault", "keys", "manifest", "manifest/manifestpb", "pack"},
	"reading": {
		"arena",
		"chunk",
		"chunks",
		"fault",
		"keys",
		"manifest",
		"manifest/manifestpb",
		"pack",
		"roots",
	},
	"unsealed": {"chunk", "chunks"},
	"drafts": {
		"chunk",
		"chunks",
		"fault",
		"manifest",
		"manifest/manifestpb",
		"unsealed",
		"reading",
		"roots",
	},
	"accounting": {"chunk", "chunks", "fault", "manifest", "manifest/manifestpb", "pack", "reading", "roots"},
	"repair": {
		"aside",
		"chunk",
		"chunks",
		"fault",
		"keys",
		"manifest",
		"manifest/manifestpb",
		"pack",
		"reading",
		"roots",
	},
	"pull": {
		"chunks",
		"cipher",
		"fault",
		"manifest",
		"manifest/manifestpb",
		"pack",
		"reading",
		"remote/object",
		"roots",
	},
	"shared": {"chunk", "fault", "remote/bucket", "remote/catalog", "remote/object", "roots", "upload"},
	"remote": {
		"chunk",
		"cipher",
		"crc32c",
		"fault",
		"keyring",
		"manifest",
		"pack",
		"remote/bucket",
		"remote/bucket/memory",
		"remote/catalog",
		"remote/config",
		"remote/object",
		"remote/profile",
		"remote/ranges",
		"remote/repack",
		"roots",
		"upload",
	},
	"upload": {
		"chunk",
		"chunks",
		"cipher",
		"crc32c",
		"fault",
		"learned",
		"manifest",
		"manifest/manifestpb",
		"pack",
		"reading",
		"remote/object",
		"roots",
	},
	"remote/object":            {"chunk", "cipher", "crc32c", "pack"},
	"remote/nodecache":         {"chunk", "cipher", "crc32c", "pack", "remote/object", "storage"},
	"remote/bucket":            {},
	"remote/ranges":            {},
	"remote/config":            {"chunk", "crc32c", "fault", "keyring"},
	"remote/profile":           {"cipher", "crc32c", "pack", "remote/bucket"},
	"remote/repack":            {"chunk", "cipher", "pack", "remote/bucket", "remote/catalog", "remote/object"},
	"remote/catalog":           {"crc32c", "manifest", "remote/bucket", "remote/bucket/memory"},
	"remote/bucket/memory":     {"remote/bucket"},
	"remote/bucket/s3":         {"remote/bucket"},
	"remote/bucket/buckettest": {"remote/bucket"},
	"upkeep": {
		"aside",
		"chunk",
		"chunks",
		"crc32c",
		"fault",
		"keys",
		"latest",
		"manifest",
		"manifest/manifestpb",
		"pack",
		"pageset",
		"reading",
		"remote/object",
		"roots",
		"storage",
	},
}

// leaves import nothing of this module.
var leaves = []string{"index/chunk", "kfd/abi", "cuda/driver"}

// onlyIn gives, for a dependency, the folders that may import it.
var onlyIn = map[string][]string{
	"github.com/hanwen/go-fuse":       {"fs", "kfd/kfdsim"},
	"github.com/dgraph-io/badger":     {"index/keys"},
	"filippo.io/age":                  {"index/keyring"},
	"github.com/minio/minio-go":       {"index/remote/bucket/s3"},
	"github.com/spf13/cobra":          {"cmd"},
	"github.com/ebitengine/purego":    {"cuda/driver"},
	module + "/cuda/driver":           {"cmd/gpucr-cuda"}, // whoever loads it is linked dynamically
	"github.com/vbauerster/mpb":       {"cmd"},
	"github.com/rogpeppe/go-internal": {"cmd", "tests"},
}

// noFolder are names that gather what has no place.
var noFolder = []string{"util", "utils", "common", "pkg", "internal", "helpers", "helper", "misc", "lib", "shared"}

// theHelper is the package of gpucr-fs plugin-helper: there a helper is a process of that name.
const theHelper = "restore/plugin/helper"

// notInLibraries are selectors that belong to main: a library neither exits, nor reads the environment, nor logs where
// it was not told to.
var notInLibraries = []string{
	"os.Exit", "os.Getenv", "os.LookupEnv", "os.Environ",
	"log.Print", "log.Printf", "log.Println", "log.Fatal", "log.Fatalf", "log.Fatalln", "log.Panic", "log.Panicf",
	"slog.Default", "slog.Debug", "slog.Info", "slog.Warn", "slog.Error", "slog.Log", "slog.SetDefault",
}

const maxLines = 600

// maxPackage bounds the lines of a package below smallPackages, tests and generated files left out.
const maxPackage = 2000

var smallPackages = []string{"index", "daemon"}

func root(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// folder gives the path within the module, "" for a package of somebody else.
func folder(importPath string) string {
	rest, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return rest
}

func top(f string) string { return strings.SplitN(f, "/", 2)[0] }

func under(f string, folders []string) bool {
	return slices.ContainsFunc(folders, func(d string) bool { return f == d || strings.HasPrefix(f, d+"/") })
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		from := folder(p.ImportPath)
		if from == "" {
			t.Errorf("%s: the module's root holds no package", p.ImportPath)
			continue
		}
		allowed, known := mayImport[top(from)]
		if !known {
			t.Errorf(
				"%s: folder %s has no place in the design; give it one in the table of this test",
				p.ImportPath,
				top(from),
			)
		}
		check := func(imports []string, test bool) {
			for _, imp := range imports {
				to := folder(imp)
				switch {
				case to == "":
				case test && top(to) == "tests":
				case top(to) != top(from) && !slices.Contains(allowed, top(to)):
					t.Errorf("%s imports %s; %s may import %v", from, to, top(from), allowed)
				case !test && under(from, leaves) && !under(to, []string{from}):
					t.Errorf("%s imports %s; it is a leaf and imports nothing of ours", from, to)
				}
				for dep, folders := range onlyIn {
					if (imp == dep || strings.HasPrefix(imp, dep+"/")) && !under(from, folders) {
						t.Errorf("%s imports %s; only %v may", from, imp, folders)
					}
				}
			}
		}
		check(p.Imports, false)
		check(p.TestImports, true)
		check(p.XTestImports, true)
		for _, part := range strings.Split(from, "/") {
			if slices.Contains(noFolder, part) && from != theHelper {
				t.Errorf("%s: %q is no name for a package; name it for what it does", from, part)
			}
		}
	}
}

// TestDaemonArrowsGoDown: no package of daemon/ knows one that stands on it.
func TestDaemonArrowsGoDown(t *testing.T) {
	for _, p := range packages(t) {
		from, ok := strings.CutPrefix(folder(p.ImportPath), "daemon/")
		if folder(p.ImportPath) == "daemon" {
			t.Error("daemon holds a package; what it did is done by those below it")
		}
		if !ok {
			continue
		}
		allowed, known := daemonMayImport[from]
		if !known {
			t.Errorf("daemon/%s has no place in the design; give it one in the table of this test", from)
		}
		for _, imp := range p.Imports {
			if to, ok := strings.CutPrefix(folder(imp), "daemon/"); ok && !slices.Contains(allowed, to) {
				t.Errorf("daemon/%s imports daemon/%s; it may import %v", from, to, allowed)
			}
		}
	}
}

// TestIndexArrowsGoDown: no package of index/ knows one that stands on it. The store itself knows them all.
func TestIndexArrowsGoDown(t *testing.T) {
	for _, p := range packages(t) {
		from, ok := strings.CutPrefix(folder(p.ImportPath), "index/")
		if !ok {
			continue
		}
		allowed, known := indexMayImport[from]
		if !known {
			t.Errorf("index/%s has no place in the design; give it one in the table of this test", from)
		}
		for _, imp := range slices.Concat(p.Imports, p.TestImports) {
			to := folder(imp)
			if top(to) == "index" && !slices.Contains(allowed, strings.TrimPrefix(to, "index/")) {
				t.Errorf("index/%s imports %s; of index/ it may import %v", from, to, allowed)
			}
		}
	}
}

func TestPackagesAreSmall(t *testing.T) {
	lines := map[string]int{}
	sources(t, []string{".go"}, func(name string, text []byte) {
		if dir := path.Dir(name); !strings.HasSuffix(name, "_test.go") && !generated(text) &&
			under(dir, smallPackages) {
			lines[dir] += bytes.Count(text, []byte("\n"))
		}
	})
	for dir, n := range lines {
		if n > maxPackage {
			t.Errorf("%s has %d lines; split it, one purpose a package (limit %d)", dir, n, maxPackage)
		}
	}
}

// sources calls f with the path, relative to the module, and content of every file of ours with one of the extensions.
func sources(t *testing.T, exts []string, f func(name string, text []byte)) {
	t.Helper()
	dir := root(t)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "build" || name == "bin" || (strings.HasPrefix(d.Name(), ".") && name != "." && name != ".ci") {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains(exts, path.Ext(name)) {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f(name, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func generated(text []byte) bool {
	head, _, _ := bytes.Cut(text, []byte("\npackage "))
	return bytes.Contains(head, []byte("// Code generated ")) && bytes.Contains(head, []byte("DO NOT EDIT."))
}

func TestFilesAreShort(t *testing.T) {
	sources(t, []string{".go", ".c", ".h", ".sh", ".proto"}, func(name string, text []byte) {
		if n := bytes.Count(text, []byte("\n")); n >= maxLines && !generated(text) {
			t.Errorf("%s has %d lines; split it, one idea a file (limit %d)", name, n, maxLines)
		}
	})
}

// rawCalls are the selectors that need the same care as package unsafe.
var rawCalls = []string{
	"syscall.Syscall",
	"syscall.Syscall6",
	"syscall.RawSyscall",
	"syscall.RawSyscall6",
	"unix.Syscall",
	"unix.Syscall6",
	"unix.RawSyscall",
	"unix.RawSyscall6",
}

// interrupted are calls that fail with EINTR when a signal comes, and that SA_RESTART does not repeat: see signal(7).
// Go's runtime sends signals to itself.
var interrupted = []string{"unix.Poll", "unix.Ppoll", "unix.EpollWait", "unix.Select", "unix.Pselect",
	"unix.Nanosleep", "unix.ClockNanosleep", "syscall.EpollWait", "syscall.Select", "syscall.Nanosleep"}

func TestCodeStaysInItsPlace(t *testing.T) {
	sources(t, []string{".go"}, func(name string, text []byte) {
		if generated(text) {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			t.Error(err)
			return
		}
		stem := strings.TrimSuffix(strings.TrimSuffix(name, ".go"), "_test")
		test := strings.HasSuffix(name, "_test.go")
		raw := strings.HasSuffix(stem, "_unsafe") || strings.HasSuffix(stem, "_linux")
		library := !test && top(name) != "cmd" && top(name) != "tests"
		for _, imp := range file.Imports {
			if imp.Path.Value == `"unsafe"` && !raw {
				t.Errorf("%s imports unsafe; only files named *_unsafe.go or *_linux.go do", name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			use := fmt.Sprintf("%s.%s", x.Name, sel.Sel.Name)
			switch {
			case library && slices.Contains(notInLibraries, use):
				t.Errorf("%s uses %s; a library takes what it needs in its Options", name, use)
			case !raw && slices.Contains(rawCalls, use):
				t.Errorf("%s uses %s; only files named *_unsafe.go or *_linux.go do", name, use)
			case slices.Contains(interrupted, use) && !bytes.Contains(text, []byte("EINTR")):
				t.Errorf("%s uses %s, and says nothing of EINTR; signals may come at any time", name, use)
			case test && (use == "t.Skip" || use == "t.Skipf" || use == "t.SkipNow"):
				t.Errorf("%s uses %s; a test that needs something fails and says what to install", name, use)
			}
			return true
		})
	})
}
