package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/cuda"
)

// bench is what the steps share.
type bench struct {
	o               options
	began           time.Time
	out             io.Writer
	log             *slog.Logger
	res             *results
	gpucrfs, holder string
	store, images   string // images is where the eager restores read, on tmpfs
	mount           string // where the store is mounted, "" while it is not
	mu              sync.Mutex
	apps            []*app        // all ever started; under mu
	runs            int           // numbers files; under mu
	dumpTook        time.Duration // the last dump
	subject         string        // put before the kinds of restores in tables, such as "14g, "
	remaps          sync.Mutex    // held from a dump with criu's --link-remap to its restore: names would meet
}

// endTimeout is how long a program has to end by itself.
const endTimeout = 15 * time.Second

// command runs a program, with a log of its own, and gives its standard output. Its error carries what it said.
func (b *bench) command(ctx context.Context, program string, args ...string) (string, error) {
	cmd, done, err := b.prepare(program, args...)
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", done(err)
	}
	// It is asked to end first: what it has suspended it then sets going again.
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(endTimeout):
			cmd.Process.Kill()
		}
	})
	defer stop()
	err = cmd.Wait()
	close(ended)
	err = done(err)
	if ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return cmd.Stdout.(*bytes.Buffer).String(), err
}

// number gives each file a number of its own.
func (b *bench) number() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runs++
	return b.runs
}

// prepare makes a command; done closes its log and puts what it said into its error.
func (b *bench) prepare(program string, args ...string) (*exec.Cmd, func(error) error, error) {
	words := filepath.Base(program)
	if len(args) > 0 {
		words += "-" + strings.ReplaceAll(args[0], "/", "")
	}
	log, err := os.Create(filepath.Join(b.o.work, "logs", fmt.Sprintf("%03d-%s.log", b.number(), words)))
	if err != nil {
		return nil, nil, err
	}
	fmt.Fprintf(log, "$ %s %s\n", program, strings.Join(args, " "))
	var out, said bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(log, &said)
	cmd.WaitDelay = 10 * time.Second // what it leaves behind may hold its standard error
	return cmd, func(err error) error {
		fmt.Fprintf(log, "%s\n%v\n", out.Bytes(), err)
		log.Close()
		if errors.Is(err, exec.ErrWaitDelay) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(append([]string{filepath.Base(program)}, args...), " "), err,
				strings.TrimSpace(said.String()))
		}
		return nil
	}, nil
}

// fs runs gpucr-fs.
func (b *bench) fs(ctx context.Context, args ...string) (string, error) {
	return b.command(ctx, b.gpucrfs, args...)
}

// fsJSON runs gpucr-fs and reads its JSON.
func (b *bench) fsJSON(ctx context.Context, into any, args ...string) error {
	out, err := b.fs(ctx, append(args, "--json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("%s: %w: %q", strings.Join(args, " "), err, out)
	}
	return nil
}

// driver starts gpucr-cuda for the restores that are compared with, and waits until it has loaded the driver: its time
// is not theirs.
func (b *bench) driver(ctx context.Context) (*cuda.Client, error) {
	c, err := cuda.Start(cuda.Options{Program: b.holder, Library: b.o.libcuda, Logger: b.log})
	if err != nil {
		return nil, err
	}
	if _, err := c.Info(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// gpu tells whether the applications use CUDA.
func (b *bench) gpu() bool { return b.o.app != "torch" || b.o.device == "cuda" }

// dump dumps an application into the store and tells how long that took, and what was new.
func (b *bench) dump(ctx context.Context, a *app, name string, leave bool) error {
	before, err := b.packs()
	if err != nil {
		return err
	}
	start := time.Now()
	if _, err := b.fs(ctx, b.dumpArgs(a, name, leave)...); err != nil {
		return err
	}
	b.dumpTook = time.Since(start)
	if !leave {
		if err := a.gone(ctx); err != nil {
			return err
		}
	}
	after, err := b.packs()
	if err != nil {
		return err
	}
	var info struct {
		Checkpoint struct{ Logical, Zero, Unique int64 }
	}
	if err := b.fsJSON(ctx, &info, "info", b.store, name); err != nil {
		return err
	}
	s := share{What: name, Logical: info.Checkpoint.Logical, Zero: info.Checkpoint.Zero, Unique: info.Checkpoint.Unique,
		Grown: after - before}
	b.res.Shares = append(b.res.Shares, s)
	fmt.Fprintf(b.out, "dump %s: %.2f s; %d bytes, %.1f %% zero, %.2f %% not shared; the store grew by %d\n", name,
		b.dumpTook.Seconds(), s.Logical, percent(s.Zero, s.Logical),
		percent(s.Unique, s.Logical), s.Grown)
	return nil
}

func (b *bench) dumpArgs(a *app, name string, leave bool) []string {
	args := []string{"dump", b.store, name, "-t", strconv.Itoa(a.pid), "--criu", b.o.criu}
	if leave {
		args = append(args, "--leave-running")
	}
	return args
}

// packs gives what the store's packs take on disk.
func (b *bench) packs() (total int64, err error) {
	err = filepath.WalkDir(filepath.Join(b.store, "packs"), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return err
		}
		total += st.Blocks * 512
		return nil
	})
	return total, err
}

// mounted keeps the store's daemon running, by a mount.
func (b *bench) mounted(ctx context.Context) error {
	if b.mount != "" {
		return nil
	}
	dir := filepath.Join(b.o.work, "mnt")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if _, err := b.fs(ctx, "mount", b.store, dir); err != nil {
		return err
	}
	b.mount = dir
	return nil
}

// quiet unmounts the store and waits until its daemon has ended.
func (b *bench) quiet(ctx context.Context) error {
	if b.mount != "" {
		if _, err := b.fs(ctx, "umount", b.mount); err != nil {
			return err
		}
		b.mount = ""
	}
	for {
		if _, err := os.Stat(filepath.Join(b.store, "daemon.sock")); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("the store's daemon does not end")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// readPacks brings the store into the page cache.
func (b *bench) readPacks() error {
	return filepath.WalkDir(filepath.Join(b.store, "packs"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(io.Discard, f)
		return err
	})
}

// dropCaches empties the page cache.
func dropCaches() error {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

// cleanUp ends all applications, mounts and the daemon, and removes what is large.
func (b *bench) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, a := range b.apps {
		if err := a.killTree(ctx); err != nil {
			fmt.Fprintln(b.out, "clean up:", err)
		}
	}
	if err := b.quiet(ctx); err != nil {
		fmt.Fprintln(b.out, "clean up:", err)
	}
	if log, err := os.ReadFile(filepath.Join(b.store, "daemon.log")); err == nil {
		if err := os.WriteFile(filepath.Join(b.o.work, "logs", "zz-daemon.log"), log, 0o600); err != nil {
			fmt.Fprintln(b.out, "clean up:", err)
		}
	}
	_ = unix.Unmount(filepath.Dir(b.images), unix.MNT_DETACH)
	if !b.o.keep {
		for _, d := range []string{b.store, filepath.Dir(b.images)} {
			if err := os.RemoveAll(d); err != nil {
				fmt.Fprintln(b.out, "clean up:", err)
			}
		}
	}
}
