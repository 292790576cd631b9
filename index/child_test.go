package index

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// childMode names, in the environment of the test binary run again, what it is to do in place of the tests; its first
// argument is the folder of the store.
const childMode = "GPUCR_INDEX_TEST_CHILD"

// children are the things that need a process of their own, to be measured.
var children = map[string]func(dir string) error{
	"killed":           killedChild,
	"full":             fullChild,
	"maintain":         maintainChild,
	"optimize-placed":  optimizeChild("placed"),
	"optimize-checked": optimizeChild("checked"),
	"optimize-moved":   optimizeChild("moved"),
}

func runChild(mode string) int {
	if err := children[mode](os.Args[1]); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// child runs the test binary again and gives what it printed.
func child(t testing.TB, mode, dir string) (string, error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, dir)
	cmd.Env = append(os.Environ(), childMode+"="+mode, "GOGC=25") // as gpucr-fs has it
	out, err := cmd.CombinedOutput()
	return string(out), err
}
