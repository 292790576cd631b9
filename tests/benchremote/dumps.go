package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/daemon/uploads"
	"github.com/gpucr/gpucr-fs/tests/measure"
	"github.com/gpucr/gpucr-fs/tests/workload"
)

// dumped is one dump to a store without a bucket, and one to a store with one.
type dumped struct {
	Local   float64 `json:"local"`   // seconds until it is sealed in a store without a bucket
	Sealed  float64 `json:"sealed"`  // in one with a bucket
	Durable float64 `json:"durable"` // until it stands in the bucket
	Sent    int64   `json:"sent"`    // bytes over the link
}

// second is a process that has loaded the same model as another, which the bucket has already.
type second struct {
	Sent int64 `json:"sent"` // bytes that its upload from another machine sent over the link
	Adds int64 `json:"adds"` // bytes by which it makes one store on disk longer that has the first
}

// startWorkload runs a process with a model that is always the same and a heap that is its own.
func (b *bench) startWorkload(s *subject, name string, heapSeed int) (*workload.Process, error) {
	dir := filepath.Join(s.dir, "process-"+name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return workload.Start(b.workload, dir, "--mem", strconv.Itoa(s.mb), "--child-mem", strconv.Itoa(max(2, s.mb/60)),
		"--model-seed", "42", "--heap-seed", strconv.Itoa(heapSeed), "--check-rate", "500")
}

// writes measures what stores with a bucket do when they are written to.
func (b *bench) writes(s *subject, z *size) (err error) {
	// Nothing is restored any more: what these processes leave goes to init, which reaps it (lazytarget.Start).
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
		return err
	}
	one, err := b.startWorkload(s, "one", 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, one.Kill()) }()
	for round := range b.rounds {
		d, err := b.dumps(s, one, round)
		if err != nil {
			return fmt.Errorf("dump: %w", err)
		}
		z.Dumps = append(z.Dumps, d)
		say("%5d MB  dump: local %.3f s, with a bucket %.3f s, durable after %.3f s", s.mb, d.Local, d.Sealed,
			d.Durable)
	}
	two, err := b.startWorkload(s, "two", 2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, two.Kill()) }()
	z.Second, err = b.secondOf(s, one, two)
	say("%5d MB  a second process of the model: sent %.1f MB, adds %.1f MB to one store", s.mb,
		float64(z.Second.Sent)/1e6, float64(z.Second.Adds)/1e6)
	return err
}

// inBucket calls fn with a bucket of its own, which is gone afterwards.
func (b *bench) inBucket(s *subject, name string, fn func(at *subject) error) error {
	at := &subject{mb: s.mb, dir: s.dir, bucket: s.bucket + "-" + name}
	if err := b.server.MakeBucket(at.bucket); err != nil {
		return err
	}
	return errors.Join(fn(at), os.RemoveAll(filepath.Join(b.dir, "objects", at.bucket)))
}

// dumps dumps a process that runs on, to an empty store without a bucket and to one with an empty bucket, whose order
// changes with the rounds.
func (b *bench) dumps(s *subject, p *workload.Process, round int) (d dumped, err error) {
	local := func() error {
		store := filepath.Join(s.dir, "local")
		if _, err := b.gpucr.Run(b.ctx, "init", store); err != nil {
			return err
		}
		n := &node{store: store, mnt: store + "-mnt"}
		_, sealed, err := b.dumpTo(s, n, p)
		d.Local = sealed
		return errors.Join(err, n.remove())
	}
	remote := func() error {
		return b.inBucket(s, fmt.Sprintf("dump-%d", round), func(at *subject) error {
			n, err := b.node(at, "remote")
			if err != nil {
				return err
			}
			before := b.link.Counts()
			begun, sealed, err := b.dumpTo(at, n, p)
			if err == nil {
				_, err = b.gpucr.Run(b.ctx, "sync", n.store)
			}
			d.Sealed, d.Durable = sealed, time.Since(begun).Seconds()
			if err == nil {
				err = b.stands(n)
			}
			d.Sent = b.link.Counts().Minus(before).Sent
			return errors.Join(err, n.remove())
		})
	}
	order := []func() error{local, remote}
	for i := range order {
		if err := order[(i+round)%2](); err != nil {
			return d, err
		}
	}
	return d, nil
}

// dumpName is the checkpoint of a dump.
const dumpName = "dump"

// dumpTo dumps a process with a daemon that serves already and stays. It gives when that began, and the seconds until
// the checkpoint was sealed.
func (b *bench) dumpTo(s *subject, n *node, p *workload.Process) (begun time.Time, sealed float64, err error) {
	if err := os.MkdirAll(n.mnt, 0o755); err != nil {
		return begun, 0, err
	}
	if _, err := measure.Freshen(int64(s.mb)<<20 + 256<<20); err != nil {
		return begun, 0, err
	}
	measure.Sync()
	if n.daemon, err = b.gpucr.Serve(n.store, n.mnt); err != nil {
		return begun, 0, err
	}
	begun = time.Now()
	_, err = b.gpucr.Run(b.ctx, "dump", "--criu", b.criu, "--leave-running", "-t", strconv.Itoa(p.PID), n.store,
		dumpName)
	return begun, time.Since(begun).Seconds(), err
}

// stands refuses a dump that does not stand in the bucket.
func (b *bench) stands(n *node) error {
	var list struct {
		Checkpoints []struct{ Name, Place string }
	}
	if err := b.gpucr.JSON(b.ctx, &list, "ls", "--fast", n.store); err != nil {
		return err
	}
	for _, c := range list.Checkpoints {
		if c.Name == dumpName && c.Place == uploads.Durable {
			return nil
		}
	}
	return errors.New("the dump is not durable after sync")
}

// secondOf takes a process to the bucket from one machine, and another one of the same model from another machine. It
// compares what the second sends with what it adds to one store that has the first.
func (b *bench) secondOf(s *subject, one, two *workload.Process) (out second, err error) {
	images := map[string]string{}
	for name, p := range map[string]*workload.Process{"one": one, "two": two} {
		images[name] = filepath.Join(s.dir, "images-"+name)
		if err := os.MkdirAll(images[name], 0o755); err != nil {
			return out, err
		}
		err := b.command(b.criu, "dump", "-D", images[name], "-t", strconv.Itoa(p.PID), "--leave-running")
		if err != nil {
			return out, err
		}
	}
	store := filepath.Join(s.dir, "both")
	if _, err := b.gpucr.Run(b.ctx, "init", store); err != nil {
		return out, err
	}
	var sizes []int64
	for _, name := range []string{"one", "two"} {
		if _, err := b.gpucr.Run(b.ctx, "import", store, name, images[name]); err != nil {
			return out, err
		}
		n, err := measure.DiskBytes(filepath.Join(store, "packs"))
		if err != nil {
			return out, err
		}
		sizes = append(sizes, n)
	}
	out.Adds = sizes[1] - sizes[0]
	err = b.inBucket(s, "second", func(at *subject) error {
		for _, name := range []string{"one", "two"} {
			n, err := b.node(at, "machine-"+name)
			if err != nil {
				return err
			}
			if _, err := b.gpucr.Run(b.ctx, "import", n.store, name, images[name]); err != nil {
				return err
			}
			before := b.link.Counts()
			if _, err := b.gpucr.Run(b.ctx, "sync", n.store); err != nil {
				return err
			}
			out.Sent = b.link.Counts().Minus(before).Sent // of the second at last
			if err := n.remove(); err != nil {
				return err
			}
		}
		return nil
	})
	return out, errors.Join(err, os.RemoveAll(store), os.RemoveAll(images["one"]), os.RemoveAll(images["two"]))
}
