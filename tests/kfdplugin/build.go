// Package kfdplugin builds the minimal CRIU plugin with which the simulator is
// tested under criu 4.2.
package kfdplugin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build compiles the plugin into the folder dir, which criu's -L then names.
// root is the module's root.
func Build(root, dir string) error {
	src := filepath.Join(root, "tests/kfdplugin/src")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	// Hidden, because the criu binary exports read_all, write_all and more
	// of its own, which would take the plugin's calls.
	args := []string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden",
		"-I/usr/include/libdrm", "-I/usr/include/drm", "-idirafter", filepath.Join(root, "tests/gpuapp/src/include"),
		"-Wl,-z,nodelete", "-o", filepath.Join(dir, "kfdsim_test.so")}
	for _, f := range []string{"plugin.c", "dump.c", "restore.c", "copy.c"} {
		args = append(args, filepath.Join(src, f))
	}
	if msg, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("kfdplugin: %w: %s\nhint: apt-get install gcc linux-libc-dev libdrm-dev", err, msg)
	}
	return nil
}
