package oci

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "runtime.json")
	if c, err := Load(file); err != nil || c.Store != "" {
		t.Errorf("no file: %+v %v", c, err)
	}
	for text, want := range map[string]string{
		`{"store": "/var/lib/gpucr-fs"}`: "",
		`{"store": "relative"}`:          "no absolute path",
		`{"stoer": "/x"}`:                "unknown field",
		`{"store": "/var`:                "unexpected EOF",
		``:                               "it is empty",
		`{"store": "/a"}{`:               "something follows",
	} {
		must(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := Load(file)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", text, err)
		}
	}
	// What calls itself would do so for ever.
	self, err := os.Executable()
	must(t, err)
	if p, err := (Config{Runtime: self}).FindRuntime(); err == nil {
		t.Errorf("it is its own runtime: %s", p)
	}
}

// A configuration that is a pipe, or has no end, is refused, and what can be understood is heeded.
func TestOddConfig(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	if _, err := Load(pipe); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a pipe: %v", err)
	}
	large := filepath.Join(dir, "large")
	must(t, os.WriteFile(large, []byte(`{"store": "/a"`+strings.Repeat(" ", maxConfig)+"}"), 0o600))
	if _, err := Load(large); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("than %d bytes", maxConfig)) {
		t.Errorf("a file without an end: %v", err)
	}
	typo := filepath.Join(dir, "typo")
	must(t, os.WriteFile(typo, []byte(`{"stoer": "/a", "runtime": "crun"}`), 0o600))
	if c, err := Load(typo); err == nil || c.Runtime != "crun" {
		t.Errorf("a key that is not known: %+v %v", c, err)
	}
	for _, file := range []string{filepath.Join(dir, ReferenceFile), filepath.Join(dir, inventory)} {
		must(t, syscall.Mkfifo(file, 0o600))
	}
	if _, err := ReadReference(dir); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a reference that is a pipe: %v", err)
	}
}

// What users other than root can change names no programs for root.
func TestConfigOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir, file string) error
		want   string
	}{
		"all as it should be": {func(_, file string) error { return os.Chmod(file, 0o644) }, ""},
		"writable by all":     {func(_, file string) error { return os.Chmod(file, 0o646) }, "chmod go-w"},
		"writable by a group": {func(_, file string) error { return os.Chmod(file, 0o664) }, "chmod go-w"},
		"of another":          {func(_, file string) error { return os.Chown(file, 4711, 0) }, "chown root"},
		"a folder of another": {func(dir, _ string) error { return os.Chown(dir, 4711, 0) }, "chown root"},
		"a folder for all":    {func(dir, _ string) error { return os.Chmod(dir, 0o777) }, "chmod go-w"},
		"as in /tmp":          {func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, ""},
		"by a link of another": {func(_, file string) error {
			if err := os.Rename(file, file+".real"); err != nil {
				return err
			}
			if err := os.Symlink("../etc/runtime.json.real", file); err != nil {
				return err
			}
			return os.Lchown(file, 4711, 0)
		}, "chown root"},
		"by a link": {func(_, file string) error {
			if err := os.Rename(file, file+".real"); err != nil {
				return err
			}
			return os.Symlink("../etc/./runtime.json.real", file)
		}, ""},
		"links in a circle": {func(_, file string) error {
			if err := os.Remove(file); err != nil {
				return err
			}
			return os.Symlink("runtime.json", file)
		}, "too many levels"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etc")
			must(t, os.Mkdir(dir, 0o755))
			file := filepath.Join(dir, "runtime.json")
			must(t, os.WriteFile(file, []byte(`{"store": "/a", "runtime": "crun"}`), 0o600))
			must(t, c.change(dir, file))
			got, err := Load(file)
			switch {
			case c.want == "" && (err != nil || got.Store != "/a"):
				t.Errorf("%+v %v", got, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || got != Config{}):
				t.Errorf("%+v %v", got, err)
			}
		})
	}
}
