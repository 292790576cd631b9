// Command kfdshell builds the simulator, the test application and the minimal plugin into build/kfdsim, and opens a
// shell that has them: make kfdsim-shell. Its arguments are those of kfdsim shell.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gpucr/gpucr-fs/tests/gpuapp"
	"github.com/gpucr/gpucr-fs/tests/kfdplugin"
)

func main() {
	fmt.Fprintln(os.Stderr, "kfdshell:", run(os.Args[1:]))
	os.Exit(1)
}

// run becomes the shell; it returns only where that fails.
func run(args []string) error {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(out)))
	dir := filepath.Join(root, "build/kfdsim")
	if err := build(root, dir); err != nil {
		return err
	}
	sim := filepath.Join(dir, "kfdsim")
	env := environment(os.Environ(), dir, filepath.Join(root, "build/criu"))
	return fmt.Errorf("run %s: %w", sim, syscall.Exec(sim, append([]string{sim, "shell"}, args...), env))
}

// environment puts the simulator's programs and criu before all others in the PATH. Of two entries of one name in an
// environment programs take the first, so that the old ones have to go.
func environment(old []string, dir, criu string) []string {
	const path, plugin = "PATH=", "KFDSIM_PLUGIN="
	found := ""
	env := slices.DeleteFunc(slices.Clone(old), func(v string) bool {
		if p, ok := strings.CutPrefix(v, path); ok && found == "" {
			found = p
		}
		return strings.HasPrefix(v, path) || strings.HasPrefix(v, plugin)
	})
	return append(env, plugin+filepath.Join(dir, "plugin"), path+strings.Join([]string{dir, criu, found}, ":"))
}

// build puts kfdsim, gpuapp and plugin/ into dir.
func build(root, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "plugin"), 0o755); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "kfdsim"), "./cmd/kfdsim")
	cmd.Dir = root
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build kfdsim: %w: %s", err, msg)
	}
	if err := gpuapp.Build(root, filepath.Join(dir, "gpuapp")); err != nil {
		return err
	}
	return kfdplugin.Build(root, filepath.Join(dir, "plugin"))
}
