package kfdsim

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

var (
	//go:embed enter.sh
	enterScript []byte
	//go:embed shim/shim.c
	shimSource []byte
	//go:embed shim/kfdsim.h
	shimHeader []byte
)

// EnterScript is the name, in Options.Dir, of the script that runs a command
// where the simulated devices are /dev/kfd and /dev/dri: enter.sh DIR COMMAND.
const EnterScript = "enter.sh"

// BuildShim compiles the shim that criu needs to take the simulator's files
// for character devices, and returns its path: LD_PRELOAD it into criu alone.
// It needs a C compiler, $CC or cc.
func (s *Sim) BuildShim(cc string) (string, error) {
	if cc == "" {
		cc = "cc"
	}
	for name, content := range map[string][]byte{"shim.c": shimSource, "kfdsim.h": shimHeader} {
		if err := os.WriteFile(filepath.Join(s.opts.Dir, name), content, 0o644); err != nil {
			return "", fmt.Errorf("kfdsim: shim: %w", err)
		}
	}
	out := filepath.Join(s.opts.Dir, "shim.so")
	cmd := exec.Command(cc, "-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", out,
		filepath.Join(s.opts.Dir, "shim.c"), "-ldl")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("kfdsim: compile shim: %w: %s", err, msg)
	}
	return out, nil
}
