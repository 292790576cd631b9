// Package gpuapp builds the test GPU application (src/main.c tells what it does)
// with the machine's C compiler.
package gpuapp

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Build compiles the application to the file out, without need of shared
// libraries, so that it runs in an empty container. root is the module's root.
func Build(root, out string) error {
	src := filepath.Join(root, "tests/gpuapp/src")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("gpuapp: not tried on %s", runtime.GOARCH)
	}
	cmd := exec.Command(cc, "-static", "-pthread", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror",
		"-I"+filepath.Join(root, "kfd/kfdsim/shim"), "-idirafter", filepath.Join(src, "include"),
		"-o", out, filepath.Join(src, "main.c"), filepath.Join(src, "gpu.c"), filepath.Join(src, "work.c"),
		filepath.Join(src, "objects.c"))
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gpuapp: %w: %s\nhint: apt-get install gcc linux-libc-dev", err, msg)
	}
	return nil
}
