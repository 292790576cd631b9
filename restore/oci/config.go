package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// maxConfig is how large a configuration may be, in bytes.
const maxConfig = 1 << 20

// Load reads a configuration. Without the file there is no store. The file names programs that are run as root: one
// that users other than root can change is not used. With an error Load gives the keys that could be understood, none
// where the file is not to be used.
func Load(path string) (Config, error) {
	fail := func(c Config, err error) (Config, error) {
		return c, fmt.Errorf("configuration %s of gpucr-runc: %w", path, err)
	}
	var c Config
	file, err := Guarded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return fail(c, fmt.Errorf("it names programs that root runs, and is not used: %w", err))
	}
	text, err := readAtMost(file, maxConfig)
	if err != nil {
		return fail(c, err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err == io.EOF {
		return fail(c, fmt.Errorf("it is empty: write %s into it", example))
	} else if err != nil {
		return fail(c, fmt.Errorf("%w: it has to be JSON such as %s", err, example))
	}
	if _, err := d.Token(); err != io.EOF {
		return fail(c, errors.New("something follows the first object: remove it"))
	}
	if c.Store != "" && !filepath.IsAbs(c.Store) {
		return fail(c, fmt.Errorf("the store %q is no absolute path", c.Store))
	}
	return c, nil
}

// example is the least that a configuration has to say.
const example = `{"store": "/var/lib/gpucr-fs/node"}`

// NeedStore refuses a configuration, read from path, that names no store.
func (c Config) NeedStore(path string) error {
	if c.Store == "" {
		return fmt.Errorf("no store is named for the checkpoints of containers: write %s into %s", example, path)
	}
	return nil
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
