// Package plugin names the CRIU plugin for AMD GPUs and finds it. Its source is
// C, in src; src/plugin.c tells how it works, scripts/plugin.sh builds it.
package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Name is the plugin's file. CRIU loads every .so of the folder it is given.
const Name = "gpucr_plugin.so"

// ErrNotFound says that the plugin is not where Dir looks for it.
var ErrNotFound = errors.New("the CRIU plugin for AMD GPUs is not installed")

// beside are where the plugin lies, from the program's own folder: installed,
// and as it is built.
var beside = []string{"../lib/gpucr-fs", "../build/plugin"}

// Dir returns the folder of the plugin that belongs to the program exe.
// [os.Executable] names the running one.
func Dir(exe string) (string, error) {
	exe, err := filepath.EvalSymlinks(exe)
	if err != nil {
		return "", err
	}
	for _, d := range beside {
		dir := filepath.Join(filepath.Dir(exe), d)
		_, err := os.Stat(filepath.Join(dir, Name))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("no %s beside %s: %w", Name, exe, ErrNotFound)
}
