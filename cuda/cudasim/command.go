package cudasim

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// BuildHolder builds gpucr-cuda into dir and gives its path. The module is the one of the working directory.
func BuildHolder(dir string) (string, error) {
	return BuildCommand(dir, "gpucr-cuda")
}

// BuildCommand builds one of the module's commands into dir, without cgo, and gives its path.
func BuildCommand(dir, name string) (string, error) {
	out := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-o", out, "github.com/gpucr/gpucr-fs/cmd/"+name)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cudasim: build %s: %w: %s", name, err, msg)
	}
	return out, nil
}
