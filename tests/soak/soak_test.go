package soak

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/tests/cli"
)

var (
	checkpoints = flag.Int("soak.n", 160, "how many checkpoints are written, sealed and read (make soak: 5000)")
	warm        = flag.Int(
		"soak.warm", 80, "after how many the daemon has in memory what it keeps at hand (make soak: 500)",
	)
	files  = flag.Int("soak.files", 256, "images of a checkpoint (make soak: 64)")
	growth = flag.Int64("soak.growth", 32, "MiB that the daemon may grow by afterwards (make soak: 64)")
)

// soak is a daemon under test.
type soak struct {
	t       *testing.T
	session *client.Session
	pid     int
	mnt     string
	kept    []string
	made    int
	noise   *rand.ChaCha8
}

// TestMemoryStays writes, seals and reads checkpoints through one daemon and removes half of them. What the daemon
// takes does not follow their number.
func TestMemoryStays(t *testing.T) {
	dir := t.TempDir()
	program, err := cli.Build(dir)
	must(t, err)
	store, mnt := filepath.Join(dir, "store"), filepath.Join(dir, "mnt")
	must(t, os.Mkdir(mnt, 0o755))
	ctx := context.Background()
	_, err = program.Run(ctx, "init", store)
	must(t, err)
	d, err := program.Serve(store, mnt, "--cache-size", "16MiB")
	must(t, err)
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	session, ok, err := client.ConnectDaemon(ctx, store)
	if err != nil || !ok {
		t.Fatalf("no daemon: %v", err)
	}
	defer session.Close()
	stats, err := service.LiveStats.Do(ctx, session, service.StatsRequest{}, wire.Streams{})
	must(t, err)
	s := &soak{t: t, session: session, pid: stats.PID, mnt: mnt, noise: rand.NewChaCha8([32]byte{1})}

	r := rand.New(rand.NewPCG(1, 2))
	var before int64
	for i := range *checkpoints {
		s.once(r, fmt.Sprintf("dump-%05d", i))
		if i+1 == *warm {
			before = s.settled()
		}
		if (i+1)%500 == 0 {
			t.Logf("after %d checkpoints: %d MiB anonymous", i+1, s.anonymous()>>20)
		}
	}
	after := s.settled()
	t.Logf(
		"anonymous memory of the daemon: %d MiB after %d checkpoints, %d MiB after %d", before>>20, *warm, after>>20,
		*checkpoints,
	)
	if after > before+*growth<<20 {
		t.Errorf(
			"the daemon grew by %d MiB, more than %d, while %d checkpoints went through it", (after-before)>>20,
			*growth, *checkpoints-*warm,
		)
	}
}

// once writes, seals and reads a checkpoint, and removes every other.
func (s *soak) once(r *rand.Rand, name string) {
	s.t.Helper()
	dir := filepath.Join(s.mnt, ".checkpoints", name)
	must(s.t, os.Mkdir(dir, 0o755))
	content := map[string][]byte{
		"inventory.img": []byte(name),
		"dump.log":      bytes.Repeat([]byte("a line of the log of "+name+"\n"), 4000),
	}
	for i := len(content); i < *files+1; i++ {
		b := make([]byte, 100+i%64*300)
		s.noise.Read(b)
		content[fmt.Sprintf("core-%d.img", i)] = b
	}
	for p, b := range content {
		must(s.t, os.WriteFile(filepath.Join(dir, p), b, 0o644))
	}
	_, err := service.Seal.Do(context.Background(), s.session, service.SealRequest{Name: name}, wire.Streams{})
	must(s.t, err)
	for p, b := range content {
		got, err := os.ReadFile(filepath.Join(dir, p))
		must(s.t, err)
		if !bytes.Equal(got, b) {
			s.t.Fatalf("%s/%s reads %d other bytes", name, p, len(got))
		}
	}
	s.kept = append(s.kept, name)
	if s.made++; s.made%2 == 0 {
		i := r.IntN(len(s.kept))
		_, err := service.Remove.Do(
			context.Background(), s.session, service.RemoveRequest{Names: s.kept[i : i+1]}, wire.Streams{},
		)
		must(s.t, err)
		s.kept = slices.Delete(s.kept, i, i+1)
	}
}

// settled gives what the daemon takes when the kernel has told it what it forgot and the collector has been round: the
// least of some seconds.
func (s *soak) settled() int64 {
	least := s.anonymous()
	for range 20 {
		time.Sleep(500 * time.Millisecond)
		least = min(least, s.anonymous())
	}
	return least
}

// anonymous is the daemon's RssAnon in bytes (proc_pid_status(5)).
func (s *soak) anonymous() int64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	must(s.t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			must(s.t, err)
			return kb << 10
		}
	}
	s.t.Fatalf("no RssAnon in %q", text)
	return 0
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
