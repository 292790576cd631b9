package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/cuda/cudasim"
	"github.com/gpucr/gpucr-fs/tests/cli"
)

var (
	kills = flag.Int("kills", 8, "how many dumps lose an actor")
	seed  = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of their moments")
)

// rig makes a pack with the simulated driver, and the options to run it.
func rig(t *testing.T, gpus int) options {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpu-") // a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	sim, err := cudasim.Build(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sim.Close() })
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gpucr-fs", "gpucr-cuda"} {
		if _, err := cudasim.BuildCommand(bin, name); err != nil {
			t.Fatal(err)
		}
	}
	criu, err := cli.FindCRIU()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range append(sim.Env(cudasim.Options{GPUs: gpus}), "GPUCR_FS_FREE_FLOOR=1MiB",
		"CRIU=", "GPUCR_FS_LIBCUDA=",
		"CUBLAS_WORKSPACE_CONFIG=") {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	work := filepath.Join(dir, "work")
	return options{
		pack:    dir,
		work:    work,
		out:     filepath.Join(dir, "out"),
		criu:    criu,
		libcuda: sim.Library,
		app:     sim.App,
		budget:  5 * time.Minute,
		within:  time.Minute,
		runs:    1,
		dumps:   1,
	}
}

// shown runs the program and gives what it printed.
func shown(t *testing.T, o options) string {
	t.Helper()
	failed, err := show(context.Background(), o)
	text, _ := os.ReadFile(filepath.Join(o.out, "output.txt"))
	if err != nil || failed > 0 {
		t.Fatalf("%d steps failed, %v:\n%s", failed, err, text)
	}
	_, tables, _ := strings.Cut(string(text), "# Results")
	return tables
}

func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("the results have no %q:\n%s", w, text)
		}
	}
}

func TestKills(t *testing.T) {
	o := rig(t, 1)
	o.kills, o.seed = *kills, *seed
	text := shown(t, o)
	// Who is there to be killed, and when, depends on the machine.
	contains(t, text, fmt.Sprintf("seed %d", o.seed), "can be killed from", fmt.Sprintf("| all | %d | ", *kills))
}

func TestCopies(t *testing.T) {
	o := rig(t, 2)
	o.copies = 3
	text := shown(t, o)
	contains(
		t, text, "| gpucr-fs restore --copies 3 | 1 |",
		"| the driver alone, restore and unlock of 3 suspended processes | 1 |", "1.25 × the driver alone | ≤ ",
	)
}

func TestModels(t *testing.T) {
	o := rig(t, 1)
	o.models, o.dumps = "32m,48m", 2
	text := shown(t, o)
	for _, size := range []string{"32m", "48m"} {
		contains(t, text, "| "+size+", "+kindLazyUp+", warm | 1 |", "| "+size+", "+kindProfile+", warm | 1 |",
			"| "+size+", gpucr-fs dump | 2 |", "| "+size+", gpucr-fs dump, 1.1 × the bare steps | ≤ ")
	}
	if strings.Contains(text, "not measured") {
		t.Errorf("not all is measured:\n%s", text)
	}
}
