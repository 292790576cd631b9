package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/gpuimages"
)

// The scripts run the real main, in processes of their own.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gpucr-fs": main, mountHelperName: main})
}

func TestScripts(t *testing.T) {
	criu := findTestCRIU(t)
	packaging, err := filepath.Abs("../../packaging")
	if err != nil {
		t.Fatal(err)
	}
	cli.CloseInheritedOnExec()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("CRIU", criu)
			e.Setenv("PACKAGING", packaging)
			e.Setenv(
				"GORACE",
				"atexit_sleep_ms=0",
			) // the race detector would let every process sleep for a second at its end
			e.Setenv("GPUCR_FS_FREE_FLOOR", "1MiB")
			if err := os.WriteFile(filepath.Join(e.WorkDir, "empty.json"), []byte("{}"), 0o600); err != nil {
				return err
			}
			e.Setenv("GPUCR_FS_CONFIG", filepath.Join(e.WorkDir, "empty.json"))
			e.Defer(func() { detach(e.WorkDir) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"images":  makeImages,
			"code":    code,
			"failure": jsonFailure,
			"golden":  golden,
			"flip":    flip,
			"until":   until,

			"gpuhost":   gpuHost,
			"gpuimages": gpuImages,
		},
	})
}

func findTestCRIU(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("CRIU"); p != "" {
		return p
	}
	p, err := filepath.Abs("../../build/criu/criu")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("no criu: %v; run make criu", err)
	}
	return p
}

// detach takes away what a failed script left mounted; its daemon ends with its last mount.
func detach(dir string) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	for _, line := range strings.Split(string(text), "\n") {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			unix.Unmount(f[4], unix.MNT_DETACH)
		}
	}
}

// makeImages makes an image directory: images DIR SEED. pages-1.img is 256 KiB of noise common to all seeds, 256 KiB of
// the seed's own, and 512 KiB of zeros.
func makeImages(ts *testscript.TestScript, neg bool, args []string) {
	seed, err := strconv.Atoi(args[1])
	ts.Check(err)
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	pages := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(pages[:256<<10])
	rand.NewChaCha8([32]byte{1, byte(seed)}).Read(pages[256<<10 : 512<<10])
	ts.Check(os.WriteFile(filepath.Join(dir, "pages-1.img"), pages, 0o600))
	ts.Check(os.WriteFile(filepath.Join(dir, "inventory.img"), bytes.Repeat([]byte{byte(seed)}, 5000), 0o644))
}

// working is a line of a command that has nothing else to report for ten seconds.
var working = regexp.MustCompile(`(?m)^gpucr-fs: \w+: working for \w+\n`)

// code runs a command and checks its exit code: code N COMMAND ARG... Its output is not kept; stderr must have one
// line, or two with a hint, beside its progress.
func code(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit := (*exec.ExitError)(nil); asExit(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	stderr := working.ReplaceAllString(ts.ReadFile("stderr"), "")
	if got != want {
		ts.Fatalf("exit code %d, want %d; stderr: %s", got, want, stderr)
	}
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if want != 0 &&
		(len(lines) > 2 || !strings.HasPrefix(lines[0], "gpucr-fs: ") ||
			len(lines) == 2 && !strings.HasPrefix(lines[1], "hint: ")) {
		ts.Fatalf("stderr is not an error line and a hint: %q", stderr)
	}
}

// jsonFailure runs a command with --json that must fail: failure N COMMAND ARG... Every line that it prints on stderr
// must be JSON, the last one the error with the exit code.
func jsonFailure(ts *testscript.TestScript, neg bool, args []string) {
	if err := ts.Exec(args[1], append(slices.Clone(args[2:]), "--json")...); err == nil {
		ts.Fatalf("it succeeded")
	}
	lines := strings.Split(strings.TrimSuffix(ts.ReadFile("stderr"), "\n"), "\n")
	var last struct {
		Error string
		Code  int
	}
	for _, line := range lines {
		last.Error, last.Code = "", 0
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			ts.Fatalf("stderr has a line that is not JSON: %q", line)
		}
	}
	if last.Error == "" || strconv.Itoa(last.Code) != args[0] {
		ts.Fatalf("the last line is not an error with code %s: %s", args[0], lines[len(lines)-1])
	}
}

func asExit(err error, exit **exec.ExitError) bool {
	e, ok := err.(*exec.ExitError)
	*exit = e
	return ok
}

// Values that differ from run to run or with the store's inner workings.
var scrubbers = []struct {
	find *regexp.Regexp
	put  string
}{
	{regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*"`), `"TIME"`},
	{regexp.MustCompile(`("id": )"[0-9a-f]+"`), `$1"ID"`},
	{
		regexp.MustCompile(`("(?:pid|stored|disk|distinct|chunks|chunks_new|chunks_dup|live_chunks|dead_chunks|` +
			`reclaimable|reclaimed|free_bytes|bytes|bytes_stored|bytes_written|dedupe_ratio|packs_dropped|` +
			`cache_bytes|only)": )[\d.]+`),
		`${1}N`,
	},
	{regexp.MustCompile(`("(?:ingest|dedupe|read_cold|read_warm)_bytes_per_second": )[\d.e+]+`), `${1}N`},
	{regexp.MustCompile(`("(?:read_p\d\d|read_max)_ns": )\d+`), `${1}N`},
}

// golden compares the last standard output, made independent of the run, with a file: golden FILE. UPDATE_GOLDEN=1
// prints what it should be.
func golden(ts *testscript.TestScript, neg bool, args []string) {
	got := strings.ReplaceAll(ts.ReadFile("stdout"), ts.Getenv("WORK"), "WORK")
	for _, s := range scrubbers {
		got = s.find.ReplaceAllString(got, s.put)
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		ts.Logf("-- %s --\n%s", args[0], got)
		return
	}
	if want := ts.ReadFile(args[0]); got != want {
		ts.Fatalf("%s: got\n%s\nwant\n%s", args[0], got, want)
	}
}

// gpuHost writes a topology tree: gpuhost DIR GPUS VRAM_GIB FIRMWARE.
func gpuHost(ts *testscript.TestScript, neg bool, args []string) {
	var n [3]int
	for i := range n {
		var err error
		n[i], err = strconv.Atoi(args[i+1])
		ts.Check(err)
	}
	var o kfdsim.Options
	for range n[0] {
		o.GPUs = append(o.GPUs, kfdsim.GPU{VRAM: uint64(n[1]) << 30, FirmwareVersion: uint32(n[2])})
	}
	_, err := gpuimages.Host(ts.MkAbs(args[0]), o)
	ts.Check(err)
}

// gpuImages makes the images of a process that was dumped on a host of gpuhost with two GPUs: gpuimages DIR HOST. It
// uses AVX-512 and 1 MiB of memory.
func gpuImages(ts *testscript.TestScript, neg bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o700))
	host, err := topology.Parse(os.DirFS(ts.MkAbs(args[1])))
	ts.Check(err)
	bos := []gpuimages.BO{
		{
			Size:  1 << 20,
			Flags: abi.KFDMemVRAM,
			Seed:  1,
		}, {Size: 64 << 10, Flags: abi.KFDMemVRAM}, {Size: 8 << 10, Flags: abi.KFDMemUserptr},
		{GPU: 1, Size: 12 << 10, Flags: abi.KFDMemGTT, Seed: 2}, {GPU: 1, Size: 4 << 10, Flags: abi.KFDMemDoorbell},
	}
	ts.Check(gpuimages.Write(dir, 7, gpuimages.Process(4242, host, bos), bos))
	ts.Check(gpuimages.WriteCRIU(dir, 4242, 1<<20, 1<<0|1<<1|1<<2|1<<5))
}

// flip damages a store: flip DIR inverts a byte in the middle of its largest pack.
func flip(ts *testscript.TestScript, neg bool, args []string) {
	var largest string
	var length int64
	ts.Check(
		filepath.WalkDir(filepath.Join(ts.MkAbs(args[0]), "packs"), func(p string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			if st, err := e.Info(); err == nil && st.Size() > length {
				largest, length = p, st.Size()
			}
			return nil
		}),
	)
	f, err := os.OpenFile(largest, os.O_RDWR, 0)
	ts.Check(err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, length/2)
	ts.Check(err)
	b[0] ^= 0xff
	_, err = f.WriteAt(b, length/2)
	ts.Check(err)
}

// until repeats a command until it succeeds, for up to ten seconds: until COMMAND ARG...
func until(ts *testscript.TestScript, neg bool, args []string) {
	script := fmt.Sprintf("for i in $(seq 200); do %s && exit 0; sleep 0.05; done; exit 1", strings.Join(args, " "))
	ts.Check(ts.Exec("sh", "-c", script))
}
