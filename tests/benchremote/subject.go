package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/tests/lazytarget"
	"github.com/gpucr/gpucr-fs/tests/measure"
)

// timeout bounds every wait.
const timeout = 10 * time.Minute

// Names of checkpoints: the same contents, taken to the bucket before and after a profile was recorded.
const (
	plainName    = "plain"
	profiledName = "profiled"
)

// subject is the process being restored, with its images.
type subject struct {
	*lazytarget.Target
	pid, mb     int
	dir, images string
	bucket      string
	origin      *node  // the store it was dumped to
	empty       *node  // a machine that has restored it with a profile
	plain       string // id of the checkpoint without a profile
}

// remote is the bucket's address over the link.
func (b *bench) remote(s *subject) string {
	return "s3://" + s.bucket + "/store?endpoint=http://" + b.link.Address()
}

// size measures processes of one size.
func (b *bench) size(bin string, mb int) (err error) {
	dir := filepath.Join(b.dir, strconv.Itoa(mb))
	s := &subject{mb: mb, dir: dir, images: filepath.Join(dir, "images"), bucket: fmt.Sprintf("bucket-%d", mb)}
	if err := os.MkdirAll(s.images, 0o755); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(dir), os.RemoveAll(filepath.Join(b.dir, "objects", s.bucket)))
	}()
	say("%d MB: starting the process, dumping it, taking the dump to the bucket", mb)
	if s.Target, err = lazytarget.Start(bin, dir,
		lazytarget.Options{MB: mb, Threads: 1, Seed: 17, Quiet: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	defer s.Kill()
	s.pid = s.PID
	if err := b.command(b.criu, "dump", "-D", s.images, "-t", strconv.Itoa(s.pid)); err != nil {
		return err
	}
	if err := s.Dumped(); err != nil {
		return err
	}
	if err := b.fill(s); err != nil {
		return err
	}
	if err := b.alone(s); err != nil {
		return err
	}
	for round := range b.rounds {
		if err := b.turn(s, false, round == 0); err != nil {
			return err
		}
		for turn := range b.nearTurns {
			if err := b.turn(s, true, round+turn == 0); err != nil {
				return err
			}
		}
	}
	if err := s.empty.remove(); err != nil {
		return err
	}
	return b.writes(s, b.results.Sizes[len(b.results.Sizes)-1])
}

// fill takes the images to the bucket, by rclone as they are and from a store, there with and without a profile.
func (b *bench) fill(s *subject) (err error) {
	if err := b.server.MakeBucket(s.bucket); err != nil {
		return err
	}
	if err := b.copy(s.images, ":s3:"+s.bucket+"/images", b.server.Endpoint); err != nil {
		return err
	}
	if b.takes(wayDesync) {
		if err := b.fillDesync(s); err != nil {
			return err
		}
	}
	if s.origin, err = b.node(s, "origin"); err != nil {
		return err
	}
	store := s.origin.store
	for _, name := range []string{plainName, profiledName} {
		if _, err := b.gpucr.Run(b.ctx, "import", store, name, s.images); err != nil {
			return err
		}
	}
	begun := time.Now()
	if _, err := b.gpucr.Run(b.ctx, "sync", store, plainName); err != nil {
		return err
	}
	took := time.Since(begun).Seconds()
	if _, err := b.restoreOn(s, s.origin, profiledName, false, true); err != nil { // records the profile
		return err
	}
	if err := b.settled(s.origin, profiledName); err != nil {
		return err
	}
	if _, err := b.gpucr.Run(b.ctx, "sync", store, profiledName); err != nil {
		return err
	}
	z := &size{MB: s.mb, SyncSeconds: took}
	if z.Stored, err = b.stored(s); err != nil {
		return err
	}
	b.results.Sizes = append(b.results.Sizes, z)
	measure.Sync()
	return nil
}

// settled waits until the packed hot set of a checkpoint is kept, which is done after its restore, and stops the node.
func (b *bench) settled(n *node, name string) error {
	for end := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		kept, err := filepath.Glob(filepath.Join(n.store, "hot", "*"))
		if err == nil && len(kept) == 1 && !strings.HasSuffix(kept[0], ".new") {
			return n.stop()
		}
		if err != nil || time.Now().After(end) {
			return errors.Join(fmt.Errorf("no hot set of %s is kept", name), err)
		}
	}
}

// turn restores the process once in each way that is near, or in each that is not.
func (b *bench) turn(s *subject, near, verify bool) error {
	for _, w := range ways {
		if w.near != near || !b.takes(w.name) {
			continue
		}
		if err := b.one(s, w, verify); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// one restores the process once and ends it.
func (b *bench) one(s *subject, w way, verify bool) (err error) {
	f, err := w.measure(b, s, verify)
	if err != nil {
		return err
	}
	b.results.add(s.mb, w.name, f)
	say("%5d MB  %-20s resume %6.3f  response %6.3f  resident %6.3f  %6.1f MB in %d requests", s.mb, w.name, f.Resume,
		f.Response, f.Resident, float64(f.Received)/1e6, f.Requests)
	return nil
}

// begin readies the process's status file, and memory that is fast.
func (b *bench) begin(s *subject) error {
	need := int64(s.mb) << 20
	if _, err := measure.Freshen(2*need + 256<<20); err != nil {
		return err
	}
	s.Reset()
	s.ArmHot()
	return nil
}

// passed waits until the restored process has passed its hot set, and gives when that was.
func (b *bench) passed(s *subject) (time.Time, error) {
	s.Restored(s.pid)
	err := s.HotPassed(timeout)
	return s.HotTime(), err
}

// command runs criu and tells the end of its log when it fails.
func (b *bench) command(name string, args ...string) error {
	log := filepath.Join(b.dir, "criu.log")
	cmd := exec.CommandContext(b.ctx, name, append(args, "-o", log)...)
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return fmt.Errorf("criu %s: %w: %s", args[0], err, strings.Join(lines[max(0, len(lines)-5):], "; "))
	}
	return nil
}

// copy copies a folder with rclone.
func (b *bench) copy(from, to, endpoint string, more ...string) error {
	args := []string{"copy", from, to, "--config", "/dev/null", "--s3-provider", "Other", "--s3-env-auth",
		"--s3-endpoint", endpoint, "--s3-region", "us-east-1", "--transfers", b.connections,
		"--checkers", b.connections, "--multi-thread-cutoff", "16M", "--multi-thread-streams", b.connections,
		"--s3-upload-concurrency", "4", "--s3-chunk-size", "16M"}
	cmd := exec.CommandContext(b.ctx, b.rclone, append(args, more...)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "AWS_CA_BUNDLE=") // rclone 1.60 fails with one, which plain HTTP needs not
	})
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("rclone copy: %w: %s (hint: apt-get install rclone)", err, out)
	}
	return nil
}
