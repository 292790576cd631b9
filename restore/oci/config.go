package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// DefaultConfig is the file that says which store the checkpoints of containers are in.
const DefaultConfig = "/etc/gpucr-fs/runtime.json"

// Config is what can be said about gpucr-runc.
type Config struct {
	// Store is the folder of the store, absolute.
	Store string `json:"store"`
	// Runtime is the OCI runtime that does all the rest, a path or a name; runc, or else crun, when empty.
	Runtime string `json:"runtime,omitempty"`
	// CRIU is its program; as gpucr-fs finds it, when empty.
	CRIU string `json:"criu,omitempty"`
	// Durable checkpoints are in the store's bucket before they count as done.
	Durable bool `json:"durable,omitempty"`
}

// Load reads a configuration. Without the file there is no store.
func Load(path string) (Config, error) {
	var c Config
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read the configuration: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	if c.Store != "" && !filepath.IsAbs(c.Store) {
		return c, fmt.Errorf("configuration %s: the store %q is no absolute path", path, c.Store)
	}
	return c, nil
}

// known are runtimes that are looked for, and where only root's PATH leads.
var (
	known   = []string{"runc", "crun"}
	folders = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
)

// FindRuntime gives the path of the runtime that does the rest.
func (c Config) FindRuntime() (string, error) {
	names := known
	if c.Runtime != "" {
		names = []string{c.Runtime}
	}
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", err
	}
	for _, name := range names {
		all := []string{name}
		if filepath.Base(name) == name {
			if p, err := exec.LookPath(name); err == nil {
				all = []string{p}
			}
			for _, dir := range folders {
				all = append(all, filepath.Join(dir, name))
			}
		}
		for _, p := range all {
			st, err := os.Stat(p)
			if err == nil && !st.IsDir() && st.Mode()&0o111 != 0 && !os.SameFile(st, self) {
				return p, nil
			}
		}
	}
	return "", fmt.Errorf("no OCI runtime %v is installed", names)
}
