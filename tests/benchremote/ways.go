package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpucr/gpucr-fs/restore"
	"github.com/gpucr/gpucr-fs/tests/cli"
	"github.com/gpucr/gpucr-fs/tests/measure"
	"github.com/gpucr/gpucr-fs/tests/slowlink"
)

// way is a way to restore.
type way struct {
	name string
	near bool // fetches nothing, which takes little time and varies much: a round has several turns of these ways
	// measure restores the process once and ends it. verify: it checks all of its memory.
	measure func(b *bench, s *subject, verify bool) (figures, error)
}

const (
	wayRclone  = "rclone + criu"
	wayDesync  = "desync + criu"
	wayFirst   = "gpucr-fs first"
	wayProfile = "gpucr-fs profile"
	wayWarm    = "gpucr-fs cache warm"
	wayLocal   = "gpucr-fs local store"
)

var ways = []way{
	{wayRclone, false, copied},
	{wayDesync, false, mounted},
	{
		wayFirst, false,
		func(b *bench, s *subject, verify bool) (figures, error) { return b.onEmpty(s, plainName, verify) },
	},
	{
		wayProfile, false,
		func(b *bench, s *subject, verify bool) (figures, error) { return b.onEmpty(s, profiledName, verify) },
	},
	{wayWarm, true, func(b *bench, s *subject, verify bool) (figures, error) {
		if s.empty == nil {
			return figures{}, fmt.Errorf("nothing has filled the cache (hint: measure %q as well)", wayProfile)
		}
		return b.restore(s, s.empty, profiledName, verify)
	}},
	{wayLocal, true, func(b *bench, s *subject, verify bool) (figures, error) {
		return b.restore(s, s.origin, profiledName, verify)
	}},
}

func wayNames() (out []string) {
	for _, w := range ways {
		out = append(out, w.name)
	}
	return out
}

func (b *bench) takes(name string) bool { return slices.Contains(b.ways, name) }

// copied copies the images from the bucket and restores from them.
func copied(b *bench, s *subject, verify bool) (f figures, err error) {
	dir, work := filepath.Join(s.dir, "copied"), filepath.Join(s.dir, "work")
	defer func() { err = errors.Join(err, os.RemoveAll(dir), os.RemoveAll(work)) }()
	if err := errors.Join(os.MkdirAll(work, 0o755), b.begin(s)); err != nil {
		return f, err
	}
	defer s.Kill()
	before, begun := b.link.Counts(), time.Now()
	if err := b.copy(":s3:"+s.bucket+"/images", dir, "http://"+b.link.Address()); err != nil {
		return f, err
	}
	return b.restoreByCRIU(s, dir, work, before, begun, verify)
}

// restoreByCRIU restores from a folder with criu. before and begun tell what had come over the link, and when that was.
func (b *bench) restoreByCRIU(
	s *subject, dir, work string, before slowlink.Counts, begun time.Time, verify bool,
) (f figures, err error) {
	if err := b.command(b.criu, "restore", "-d", "-D", dir, "-W", work); err != nil {
		return f, err
	}
	f.Resume = time.Since(begun).Seconds()
	f.Resident = f.Resume
	f.count(b.link.Counts().Minus(before))
	at, err := b.passed(s)
	f.Response = at.Sub(begun).Seconds()
	if err == nil && verify {
		err = s.Check(1, timeout)
	}
	return f, err
}

// node is a machine: a store, and its daemon.
type node struct {
	store, mnt string
	daemon     *cli.Daemon // nil while it is not running
}

// node makes an empty store that is joined to the bucket.
func (b *bench) node(s *subject, name string) (*node, error) {
	n := &node{store: filepath.Join(s.dir, name), mnt: filepath.Join(s.dir, name+"-mnt")}
	if err := os.MkdirAll(n.mnt, 0o755); err != nil {
		return nil, err
	}
	_, err := b.gpucr.Run(b.ctx, "init", "--remote", b.remote(s), n.store)
	return n, err
}

func (n *node) stop() error {
	if n == nil || n.daemon == nil {
		return nil
	}
	d := n.daemon
	n.daemon = nil
	return d.Stop()
}

func (n *node) remove() error {
	if n == nil {
		return nil
	}
	return errors.Join(n.stop(), os.RemoveAll(n.store), os.RemoveAll(n.mnt))
}

// onEmpty restores on a machine that has nothing of the checkpoint. The last one with a profile is kept.
func (b *bench) onEmpty(s *subject, name string, verify bool) (f figures, err error) {
	if name == profiledName {
		if err := s.empty.remove(); err != nil {
			return f, err
		}
	}
	if err := b.unlearn(s); err != nil {
		return f, err
	}
	n, err := b.node(s, "empty-"+name)
	if err != nil {
		return f, err
	}
	if f, err = b.restore(s, n, name, verify); err != nil {
		return f, err
	}
	if name == profiledName {
		s.empty = n
		return f, nil
	}
	return f, n.remove()
}

// restore restores on a node, with a daemon that has just been started and ends with it.
func (b *bench) restore(s *subject, n *node, name string, verify bool) (figures, error) {
	return b.restoreOn(s, n, name, verify, false)
}

// restoreOn restores on a node, with a daemon that has just been started; keep leaves it running.
func (b *bench) restoreOn(s *subject, n *node, name string, verify, keep bool) (f figures, err error) {
	if n.daemon, err = b.gpucr.Serve(n.store, n.mnt); err != nil {
		return f, err
	}
	defer func() {
		f.PeakMB = n.daemon.PeakMB()
		if !keep {
			err = errors.Join(err, n.stop())
		}
	}()
	if err := b.begin(s); err != nil {
		return f, err
	}
	defer s.Kill()
	var result struct {
		Timeline restore.Timeline `json:"timeline"`
	}
	before, begun := b.link.Counts(), time.Now()
	if err := b.gpucr.JSON(b.ctx, &result, "restore", "--wait", "--criu", b.criu, n.store, name); err != nil {
		return f, err
	}
	f.count(b.link.Counts().Minus(before))
	at, err := b.passed(s)
	if err != nil {
		return f, err
	}
	f.Response = at.Sub(begun).Seconds()
	for mark, to := range map[string]*float64{restore.MarkResume: &f.Resume, restore.MarkResident: &f.Resident} {
		at, err := measure.Mark(&result.Timeline, mark)
		if err != nil {
			return f, err
		}
		*to = at.Sub(begun).Seconds()
	}
	if verify {
		err = s.Check(1, timeout)
	}
	return f, err
}
