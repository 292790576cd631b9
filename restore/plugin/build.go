// Package plugin holds the source of the CRIU plugin, which is C (plugin.c
// tells how it works), and builds it.
package plugin

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

//go:embed src/*.c src/*.h
var source embed.FS

// Name is the plugin's file. CRIU loads every .so of the folder it is given.
const Name = "gpucr_plugin.so"

// Hooks is the number of hooks of the CRIU that a build is for. A CRIU refuses
// a plugin with more, the plugin a CRIU with more.
type Hooks int

// Versions of CRIU's plugin interface.
const (
	Hooks42    Hooks = 13 // CRIU 4.2
	HooksLater Hooks = 15 // CRIU's development branch after 4.2
)

// Build compiles the plugin with the compiler cc into the folder dir, which
// criu's -L then names.
func Build(cc, dir string, hooks Hooks) error {
	src, err := os.MkdirTemp("", "gpucr-plugin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(src)
	if err := os.CopyFS(src, source); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(src, "src/*.c"))
	if err != nil {
		return err
	}
	// Hidden, because the criu binary's own functions take the calls of those
	// with the same name. Never unloaded: a task runs on after CRIU's dlclose.
	args := []string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-DCRIU_HOOKS=" + strconv.Itoa(int(hooks)), "-shared", "-fPIC",
		"-fvisibility=hidden", "-Wl,-z,nodelete", "-Wl,-z,relro", "-o", filepath.Join(dir, Name+".new")}
	if msg, err := exec.Command(cc, append(args, files...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the CRIU plugin: %w: %s", err, msg)
	}
	return os.Rename(filepath.Join(dir, Name+".new"), filepath.Join(dir, Name))
}
