package index

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/roots"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

var chunksFlag = flag.Int("chunks", 50_000, "chunks of the store that TestMillionChunks builds; 4 KiB of disk each")

func TestListOfAThousand(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	const n = 1000
	shared := memory(1, 64<<10)
	start := time.Now()
	for i := range n {
		name := fmt.Sprintf("c%04d", i)
		write(t, s, name, map[string][]byte{"pages-1.img": memory(uint64(2+i), 16<<10), "pages-2.img": shared,
			"inventory.img": []byte(name)})
	}
	t.Logf("%d checkpoints written in %v", n, time.Since(start).Round(time.Millisecond))
	for _, when := range []string{"as written", "opened anew"} {
		start = time.Now()
		list, err := s.List(t.Context())
		took := time.Since(start)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("listed, %s, in %v", when, took.Round(time.Millisecond))
		if len(list) != n {
			t.Fatalf("%d listed, want %d", len(list), n)
		}
		for i, c := range list {
			if c.State != roots.Sealed || c.Files != 3 || c.Unique+c.Shared+c.Zero != c.Logical || c.Shared == 0 {
				t.Fatalf("checkpoint %d: %+v", i, c)
			}
		}
		if took > 5*time.Second {
			t.Errorf("listing %d checkpoints took %v, more than 5 s", n, took)
		}
		if when == "as written" {
			s = reopen(t, s)
		}
	}
}

// scaleParams cut as fine as the format goes, so that many chunks need little payload.
var scaleParams = chunk.Params{Min: 4 << 10, Avg: 8 << 10, Max: 16 << 10}

// buildScale makes a store of n distinct chunks of one page: two checkpoints with half of them each.
func buildScale(t testing.TB, n int) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "store")
	if err := Init(dir, InitOptions{Compression: CompressNone}); err != nil {
		t.Fatal(err)
	}
	c, err := LoadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	c.Chunk = scaleParams
	if err := c.save(storage.Disk{}, dir); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), dir, testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	page := make([]byte, chunk.PageSize)
	rand.NewChaCha8([32]byte{1}).Read(page)
	cut := chunk.NewSplitter(scaleParams)
	var count uint64
	fillPage := func(p []byte) {
		for { // a page after which the splitter cuts, so that a chunk is a page
			count++
			binary.LittleEndian.PutUint64(page, count)
			if cut.Reset(); cut.Data(page) {
				copy(p, page)
				return
			}
		}
	}
	buf := make([]byte, 1<<20)
	for _, name := range []string{"keep", "gone"} {
		d, err := s.Create(t.Context(), name, drafts.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		f, err := d.Create("pages-1.img", 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for off, size := int64(0), int64(n/2)*chunk.PageSize; off < size; {
			part := buf[:min(int64(len(buf)), size-off)]
			for p := 0; p < len(part); p += chunk.PageSize {
				fillPage(part[p:])
			}
			if _, err := f.WriteAt(part, off); err != nil {
				t.Fatal(err)
			}
			off += int64(len(part))
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Seal(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Stats().ChunksNew; got != int64(n/2*2) {
		t.Fatalf("%d chunks stored, want %d", got, n/2*2)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// maintained is what maintainChild prints. Times in seconds, PeakRSS in bytes.
type maintained struct {
	Verify, Dry, GC, VerifyRest float64
	Found, Dead, Left           int64
	Reclaimable, Reclaimed      int64
	Problems                    int
	PeakRSS                     int64
}

// maintainChild verifies and collects the store at dir, one checkpoint of it removed in between.
func maintainChild(dir string) error {
	ctx := context.Background()
	s, err := Open(ctx, dir, Options{CacheSize: 8 << 20, FreeFloor: 1})
	if err != nil {
		return err
	}
	var m maintained
	timed := func(into *float64, fn func() error) {
		if err == nil {
			start := time.Now()
			err = fn()
			*into = time.Since(start).Seconds()
		}
	}
	verify := func(chunks *int64) func() error {
		return func() error {
			v, err := s.Verify(ctx, upkeep.VerifyOptions{})
			*chunks, m.Problems = v.Chunks, m.Problems+len(v.Problems)
			return err
		}
	}
	timed(&m.Verify, verify(&m.Found))
	if err == nil {
		err = s.Remove(ctx, []string{"gone"})
	}
	timed(&m.Dry, func() error {
		r, err := s.GC(ctx, upkeep.GCOptions{DryRun: true})
		m.Reclaimable = r.Reclaimable
		return err
	})
	timed(&m.GC, func() error {
		r, err := s.GC(ctx, upkeep.GCOptions{})
		m.Dead, m.Reclaimed = r.DeadChunks, r.Reclaimed
		return err
	})
	timed(&m.VerifyRest, verify(&m.Left))
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	if m.PeakRSS, err = peakRSS(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m)
}

// peakRSS gives the most memory this process ever had resident, in bytes.
func peakRSS() (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	line, _, _ := strings.Cut(rest, "kB")
	kb, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return kb << 10, err
}

func maintain(t *testing.T, n int) maintained {
	t.Helper()
	start := time.Now()
	dir := buildScale(t, n)
	t.Logf("%d chunks written in %v", n, time.Since(start).Round(time.Millisecond))
	out, err := child(t, "maintain", dir)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var m maintained
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%d chunks: verify %.2f s, gc dry %.2f s, gc %.2f s, verify of the rest %.2f s, %d MiB at most", n, m.Verify,
		m.Dry, m.GC, m.VerifyRest, m.PeakRSS>>20)
	half := int64(n / 2)
	if m.Found != 2*half || m.Dead != half || m.Left != half || m.Problems != 0 {
		t.Errorf("%d chunks found, %d dead, %d left, %d problems", m.Found, m.Dead, m.Left, m.Problems)
	}
	if want := half * chunk.PageSize; m.Reclaimable < want || float64(m.Reclaimed) < 0.95*float64(m.Reclaimable) {
		t.Errorf("%d bytes reclaimed of %d promised, %d dead", m.Reclaimed, m.Reclaimable, want)
	}
	return m
}

// TestMillionChunks holds gc and verify of a million chunks to 512 MiB of resident memory. Fewer chunks, as by default,
// are held to the same after extrapolation from a store of a tenth of them. How far the collector lags behind differs
// by some 20 MiB from run to run, which extrapolation multiplies; it only ever adds, so the least of a few runs counts.
func TestMillionChunks(t *testing.T) {
	const bound, million, runs = 512 << 20 * raceFactor, 1_000_000, 4
	n := *chunksFlag
	if n >= million {
		if peak := maintain(t, n).PeakRSS; peak > bound {
			t.Errorf("%d MiB resident for %d chunks, more than %d", peak>>20, n, bound>>20)
		}
		return
	}
	base := maintain(t, n/10)
	var peak int64
	for range runs {
		perChunk := float64(maintain(t, n).PeakRSS-base.PeakRSS) / (0.9 * float64(n))
		peak = base.PeakRSS + int64(max(perChunk, 0)*million)
		t.Logf("%.0f bytes a chunk, %d MiB for a million", perChunk, peak>>20)
		if peak <= bound {
			return
		}
	}
	t.Errorf("%d MiB resident for a million chunks, more than %d", peak>>20, bound>>20)
}
