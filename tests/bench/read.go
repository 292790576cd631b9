package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/measure"
)

const pagesImage = "pages-1.img"

// singlePages is a tmpfs that keeps its files in single pages, as Linux keeps those of FUSE: what a read from the page
// cache can reach where it does.
const singlePages = "tmpfs in single pages"

// reader is one place a pages image can be read from. open gives its path and what closes it again.
type reader struct {
	name string
	open func() (path string, done func() error, err error)
}

func (b *bench) readers() []reader {
	dump := b.dumps[2]
	all := []reader{
		{"ext4", func() (string, func() error, error) {
			return filepath.Join(dump, pagesImage), func() error { return nil }, nil
		}},
		b.mountReader("mount", filepath.Join(repoOf(b.dir, nameGpucr), "store")),
	}
	all = append(all, reader{singlePages,
		func() (string, func() error, error) { return b.copyToTmpfs(filepath.Join(dump, pagesImage)) }})
	if b.desync != "" {
		all = append(all, reader{nameDesync, b.mountDesync})
	}
	return all
}

// mountReader reads from a mount of a store that has the four dumps.
func (b *bench) mountReader(name, store string) reader {
	return reader{name, func() (string, func() error, error) {
		mnt := filepath.Join(b.dir, "read-mnt")
		if err := os.MkdirAll(mnt, 0o755); err != nil {
			return "", nil, err
		}
		if _, err := b.gpucr.Run(b.ctx, "mount", store, mnt); err != nil {
			return "", nil, err
		}
		return filepath.Join(mnt, ".checkpoints", "dump2", pagesImage),
			func() error { _, err := b.gpucr.Run(b.ctx, "umount", mnt); return err }, nil
	}}
}

func (b *bench) copyToTmpfs(file string) (string, func() error, error) {
	mnt := filepath.Join(b.dir, "single-pages")
	if err := os.MkdirAll(mnt, 0o755); err != nil {
		return "", nil, err
	}
	if err := unix.Mount("tmpfs", mnt, "tmpfs", 0, "huge=never"); err != nil {
		return "", nil, fmt.Errorf("mount tmpfs: %w", err)
	}
	done := func() error { return unix.Unmount(mnt, unix.MNT_DETACH) }
	to := filepath.Join(mnt, pagesImage)
	if out, err := exec.CommandContext(b.ctx, "cp", file, to).CombinedOutput(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("cp: %w: %s", err, out), done())
	}
	return to, done, nil
}

func (b *bench) mountDesync() (string, func() error, error) {
	repo := repoOf(b.dir, nameDesync)
	return measure.MountDesync(b.desync, nil, filepath.Join(repo, "store"),
		filepath.Join(repo, "dump2-"+pagesImage+".caibx"), filepath.Join(b.dir, "desync-mnt"))
}

// measureRead reads the pages image of the third dump from each place: cold, then twice from the page cache, of which
// the second counts.
func (b *bench) measureRead() error {
	if _, err := os.Stat(repoOf(b.dir, nameGpucr)); err != nil {
		for _, t := range b.tools() {
			if t.name == nameGpucr || t.name == nameDesync {
				if err := b.importOnce(t); err != nil {
					return err
				}
			}
		}
	}
	readers := b.readers()
	for round := range b.rounds {
		for i := range readers {
			if err := b.readOnce(readers[(i+round)%len(readers)]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) readOnce(r reader) (err error) {
	if err := measure.DropCaches(); err != nil {
		return err
	}
	path, done, err := r.open()
	if err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	defer func() { err = errors.Join(err, done()) }()
	rate := map[string]float64{}
	for _, pass := range []string{"cold", "warming", "cached"} {
		begun := time.Now()
		n, err := measure.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		rate[pass] = float64(n) / time.Since(begun).Seconds()
	}
	b.results.add("read cached "+r.name, rate["cached"])
	if r.name == singlePages { // it has no other place
		say("read    %-10s page-cached %5.0f MB/s", r.name, rate["cached"]/1e6)
		return nil
	}
	b.results.add("read cold "+r.name, rate["cold"])
	say("read    %-10s cold %5.0f MB/s, page-cached %5.0f MB/s", r.name, rate["cold"]/1e6, rate["cached"]/1e6)
	return nil
}
