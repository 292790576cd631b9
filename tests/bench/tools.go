package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/tests/measure"
)

// tool is one way to keep dumps. A repository is an empty folder that prepare makes usable, untimed.
type tool struct {
	name    string
	remark  string
	version func() (string, error)
	prepare func(repo string) error
	put     func(repo, name, images string) error
}

// command runs a program and gives its output; errors carry what it said.
func command(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err,
			strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func versionOf(args ...string) func() (string, error) {
	return func() (string, error) {
		out, err := command("", nil, args[0], args[1:]...)
		first, _, _ := strings.Cut(out, "\n")
		return strings.Join(strings.Fields(first), " "), err
	}
}

const (
	nameGpucr  = "gpucr-fs"
	nameCp     = "cp + sync"
	nameRestic = "restic"
	nameBorg   = "borg"
	nameDesync = "desync"
)

// tools gives the tools of the import comparison. The first is the one under test.
func (b *bench) tools() []tool {
	resticEnv := func(repo string) []string {
		return []string{"RESTIC_REPOSITORY=" + filepath.Join(repo, "repo"), "RESTIC_PASSWORD=bench",
			"RESTIC_CACHE_DIR=" + filepath.Join(b.dir, "restic-cache")}
	}
	borgEnv := func(repo string) []string {
		return []string{"BORG_REPO=" + filepath.Join(repo, "repo"),
			"BORG_BASE_DIR=" + filepath.Join(b.dir, "borg-base"), "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes"}
	}
	all := []tool{
		{
			name: nameGpucr, version: versionOf(string(b.gpucr), "version"),
			prepare: func(repo string) error {
				_, err := b.gpucr.Run(b.ctx, "init", filepath.Join(repo, "store"))
				return err
			},
			put: func(repo, name, images string) error {
				_, err := b.gpucr.Run(b.ctx, "import", filepath.Join(repo, "store"), name, images)
				return err
			},
		},
		{
			name: nameCp, remark: "cp -r, then sync", version: versionOf("cp", "--version"),
			prepare: func(string) error { return nil },
			put: func(repo, name, images string) error {
				_, err := command("", nil, "cp", "-r", images, filepath.Join(repo, name))
				if err == nil {
					measure.Sync()
				}
				return err
			},
		},
		{
			name: nameRestic, remark: "compression auto", version: versionOf("restic", "version"),
			prepare: func(repo string) error {
				_, err := command("", resticEnv(repo), "restic", "init", "--repository-version", "2")
				return err
			},
			put: func(repo, name, images string) error {
				_, err := command(images, resticEnv(repo), "restic", "backup", "--quiet", "--compression", "auto",
					"--tag", name, ".")
				return err
			},
		},
		{
			name: nameBorg, remark: "lz4", version: versionOf("borg", "--version"),
			prepare: func(repo string) error {
				_, err := command("", borgEnv(repo), "borg", "init", "-e", "none")
				return err
			},
			put: func(repo, name, images string) error {
				_, err := command(images, borgEnv(repo), "borg", "create", "-C", "lz4", "::"+name, ".")
				return err
			},
		},
	}
	if b.desync == "" {
		return all
	}
	return append(all, tool{
		name: nameDesync, remark: "make, the pages images only",
		version: func() (string, error) { return b.desync, nil },
		prepare: func(repo string) error { return os.Mkdir(filepath.Join(repo, "store"), 0o755) },
		put: func(repo, name, images string) error {
			pages, err := filepath.Glob(filepath.Join(images, "pages-*.img"))
			for _, p := range pages {
				if err == nil {
					_, err = command("", nil, b.desync, "make", "-s", filepath.Join(repo, "store"),
						filepath.Join(repo, name+"-"+filepath.Base(p)+".caibx"), p)
				}
			}
			return err
		},
	})
}

func repoOf(dir, tool string) string { return filepath.Join(dir, "repo-"+strings.Fields(tool)[0]) }

// measureImport lets each tool take all dumps, in turns, and leaves the last repositories for the reads.
func (b *bench) measureImport() error {
	tools := b.tools()
	var logical int64
	for _, d := range b.dumps {
		n, err := measure.DiskBytes(d)
		if err != nil {
			return err
		}
		logical += n
	}
	b.results.Logical = logical
	for round := range b.rounds {
		for i := range tools {
			// Rotated, so that no tool always follows the same one.
			t := tools[(i+round)%len(tools)]
			if round == 0 {
				v, err := t.version()
				if err != nil {
					return err
				}
				b.results.Versions[t.name] = v
			}
			if err := b.importOnce(t); err != nil {
				return err
			}
		}
	}
	for _, t := range tools {
		b.results.Imports = append(b.results.Imports, importResult{
			Tool: t.name, Remark: t.remark, Seconds: b.results.samples("import " + t.name),
			Stored: int64(measure.Median(b.results.samples("stored " + t.name))),
		})
	}
	return nil
}

func (b *bench) importOnce(t tool) error {
	stored, seconds, err := b.take(t, b.dumps)
	if err != nil {
		return err
	}
	b.results.add("import "+t.name, seconds)
	b.results.add("stored "+t.name, float64(stored))
	say("import  %-10s %6.2f s  %6d MB", t.name, seconds, stored/1e6)
	return nil
}

// take lets a tool take dumps into a new repository. It gives the bytes on disk and the seconds.
func (b *bench) take(t tool, dumps []string) (stored int64, seconds float64, err error) {
	repo := repoOf(b.dir, t.name)
	if err := errors.Join(os.RemoveAll(repo), os.MkdirAll(repo, 0o755)); err != nil {
		return 0, 0, err
	}
	if err := t.prepare(repo); err != nil {
		return 0, 0, err
	}
	for _, d := range dumps {
		if err := measure.ReadTree(d); err != nil {
			return 0, 0, err
		}
	}
	measure.Sync()
	begun := time.Now()
	for i, d := range dumps {
		if err := t.put(repo, fmt.Sprintf("dump%d", i), d); err != nil {
			return 0, 0, err
		}
	}
	seconds = time.Since(begun).Seconds()
	measure.Sync()
	stored, err = measure.DiskBytes(repo)
	return stored, seconds, err
}
