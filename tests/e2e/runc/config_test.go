package runc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// configured says which store a container's checkpoints go to by another text, file or folder.
func configured(t *testing.T, s *stored, change func(file string) error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "runtime.json")
	text, err := os.ReadFile(filepath.Join(s.dir, "runtime.json"))
	must(t, err)
	must(t, os.WriteFile(file, text, 0o600))
	must(t, change(file))
	t.Setenv("GPUCR_RUNC_CONFIG", file)
}

// refused runs a container from its start to its end by gpucr-runc, and wants only its checkpoints to be refused.
func refused(t *testing.T, s *stored, want string) {
	t.Helper()
	must(t, s.runc("create", "--bundle", s.bundle, s.name))
	s.mem.Reset()
	must(t, s.runc("start", s.name))
	must(t, s.mem.Ready(limit))
	images := filepath.Join(t.TempDir(), "images")
	for _, command := range []string{"checkpoint", "restore"} { // what was refused before
		must(t, os.RemoveAll(filepath.Join(s.bundle, command+".log")))
	}
	err := s.runc("checkpoint", "--image-path", images, s.name)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a checkpoint was not refused for %q: %v", want, err)
	}
	must(t, s.mem.Check(1, limit))
	must(t, os.MkdirAll(images, 0o700))
	reference := `{"version":1,"checkpoint":"web","inventory_sha256":"` + strings.Repeat("ab", 32) + `"}`
	must(t, os.WriteFile(filepath.Join(images, "gpucr-fs.json"), []byte(reference), 0o600))
	err = s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name+"-2")
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a restore was not refused for %q: %v", want, err)
	}
	must(t, s.runc("kill", s.name, "KILL"))
	must(t, s.runc("delete", "-f", s.name))
}

// TestHalfConfig: a configuration that nobody can use keeps no container from starting, running and ending.
func TestHalfConfig(t *testing.T) {
	s := newStored(t)
	for name, c := range map[string]struct {
		change func(file string) error
		want   string
	}{
		"half":    {func(f string) error { return os.WriteFile(f, []byte(`{"store": "/va`), 0o600) }, "unexpected EOF"},
		"empty":   {func(f string) error { return os.Truncate(f, 0) }, "it is empty"},
		"no JSON": {func(f string) error { return os.WriteFile(f, []byte("store=/a"), 0o600) }, "has to be JSON"},
		"missing": {os.Remove, "no store is named"},
		"a folder": {func(f string) error {
			if err := os.Remove(f); err != nil {
				return err
			}
			return os.Mkdir(f, 0o755)
		}, "no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			configured(t, s, c.change)
			refused(t, s, c.want)
		})
	}
	must(t, s.left.Nothing())
}

// TestConfigOfOthers: root runs no program that is named by a file that others can change.
func TestConfigOfOthers(t *testing.T) {
	s := newStored(t)
	ran := filepath.Join(t.TempDir(), "ran")
	runtime := filepath.Join(t.TempDir(), "evil")
	must(t, os.WriteFile(runtime, []byte("#!/bin/sh\ntouch "+ran+"\nexit 1\n"), 0o755))
	evil := []byte(`{"store": "` + s.store + `", "runtime": "` + runtime + `"}`)
	for name, c := range map[string]struct {
		change func(file string) error
		want   string
	}{
		"writable":   {func(f string) error { return os.Chmod(f, 0o666) }, "chmod go-w"},
		"of another": {func(f string) error { return os.Chown(f, 4711, 0) }, "chown root"},
		"in a folder that all can write": {func(f string) error {
			return os.Chmod(filepath.Dir(f), 0o777)
		}, "chmod go-w"},
	} {
		t.Run(name, func(t *testing.T) {
			configured(t, s, func(file string) error {
				if err := os.WriteFile(file, evil, 0o600); err != nil {
					return err
				}
				return c.change(file)
			})
			refused(t, s, c.want)
			if _, err := os.Stat(ran); err == nil {
				t.Error("the program that others name was run")
			}
		})
	}
	must(t, s.left.Nothing())
}
