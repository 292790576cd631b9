package index

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/reading"
	"github.com/gpucr/gpucr-fs/index/storage"
	"github.com/gpucr/gpucr-fs/index/upkeep"
)

// testClock goes on only when somebody sleeps, and by step each time it is looked at.
type testClock struct {
	mu    sync.Mutex
	at    time.Time
	step  time.Duration
	slept []time.Duration
}

func (c *testClock) clock() *upkeep.Clock {
	c.at = time.Unix(1e9, 0)
	return &upkeep.Clock{
		Now: func() time.Time {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.at = c.at.Add(c.step)
			return c.at
		},
		Sleep: func(ctx context.Context, d time.Duration) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.at = c.at.Add(d)
			c.slept = append(c.slept, d)
			return ctx.Err()
		},
	}
}

// bigFiles is more than two packs of a test store.
func bigFiles() map[string][]byte {
	return map[string][]byte{"pages-1.img": memory(1, 30<<20), "pages-2.img": memory(2, 30<<20)}
}

// interrupted verifies until so many bytes have been read, one run after the other, and is cancelled then.
func interrupted(t *testing.T, s *Store, o upkeep.VerifyOptions, after int64) upkeep.VerifyResult {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Progress = func(done, _ int64) {
		if done >= after {
			cancel()
		}
	}
	v, err := s.Verify(ctx, o)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("a cancelled verification ends with: %v", err)
	}
	return v
}

// noise makes n bytes that nothing makes smaller.
func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed, 77}).Read(b)
	return b
}

func resumeVerify(t *testing.T, s *Store) upkeep.VerifyResult {
	t.Helper()
	v, err := s.Verify(t.Context(), upkeep.VerifyOptions{Resume: true})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func progressFile(s *Store) string { return filepath.Join(s.dir, upkeep.ProgressName) }

func mustBeGone(t *testing.T, file string) {
	t.Helper()
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", file, err)
	}
}

// TestVerifyKeepsItsPace holds every moment of a verification to the rate.
func TestVerifyKeepsItsPace(t *testing.T) {
	const perSecond = 2 << 20
	o := testOptions(t)
	o.Workers = 1
	c := &testClock{}
	var begun time.Time
	var read int64
	o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: func(call storage.Call) storage.Fault {
		if call.Op == storage.OpRead && strings.HasSuffix(call.Name, ".pack") && !begun.IsZero() {
			c.mu.Lock()
			defer c.mu.Unlock()
			read += call.Len
			if allowed := c.at.Sub(begun).Seconds()*perSecond + perSecond/10; float64(read) > allowed+1 {
				t.Errorf("%d bytes read when %.0f were allowed", read, allowed)
			}
		}
		return storage.Fault{}
	}}
	s := newTestStore(t, o)
	write(t, s, "a", bigFiles())
	s.upkeep.Hooks.Clock = c.clock()
	begun = c.at
	v, err := s.Verify(t.Context(), upkeep.VerifyOptions{Rate: perSecond})
	if err != nil || len(v.Problems) > 0 || v.Bytes != read || read == 0 {
		t.Fatalf("%+v, %v; %d bytes read", v, err, read)
	}
	// It is smooth, and no slower than asked.
	if most := slices.Max(c.slept); most > 150*time.Millisecond {
		t.Errorf("it waited for %v", most)
	}
	if took, want := c.at.Sub(begun).Seconds(), float64(read)/perSecond; took > want*1.01+1 {
		t.Errorf("%d bytes took %.1f s instead of %.1f", read, took, want)
	}
}

// TestPaceEndsAtOnce cancels a wait that would last for hours.
func TestPaceEndsAtOnce(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", map[string][]byte{"f": memory(1, 4<<20)})
	ctx, cancel := context.WithCancel(t.Context())
	c := upkeep.WallClock
	c.Sleep = func(ctx context.Context, d time.Duration) error {
		cancel()
		return upkeep.WallClock.Sleep(ctx, time.Hour)
	}
	s.upkeep.Hooks.Clock = &c
	if _, err := s.Verify(ctx, upkeep.VerifyOptions{Rate: 1}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := s.Verify(t.Context(), upkeep.VerifyOptions{Rate: -1}); fault.ClassOf(err) != fault.Invalid {
		t.Error(err)
	}
}

// TestVerifyGoesOn interrupts a verification again and again, with the store opened anew in between: all of the payload
// is read once, and no more.
func TestVerifyGoesOn(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", bigFiles())
	all := mustVerify(t, s, 0)
	mustBeGone(t, progressFile(s))
	if all.Earlier != 0 || !all.Begun.IsZero() {
		t.Errorf("%+v", all)
	}
	if packs, err := s.chunks.Packs.Packs(); err != nil || len(packs) < 3 {
		t.Fatalf("packs %v, %v", packs, err)
	}
	first := interrupted(t, s, upkeep.VerifyOptions{}, 5<<20)
	read, last := first.Bytes, first
	for i := range 3 {
		s = reopen(t, s)
		last = interrupted(t, s, upkeep.VerifyOptions{Resume: true}, 1)
		read += last.Bytes
		if last.Earlier == 0 || last.Begun.IsZero() {
			t.Errorf("%d: it began anew: %+v", i, last)
		}
	}
	s = reopen(t, s)
	v := resumeVerify(t, s)
	if len(v.Problems) > 0 || v.Bytes+v.Earlier != all.Bytes || v.Earlier <= last.Earlier ||
		!v.Begun.Equal(last.Begun) {
		t.Errorf("%+v of %+v", v, all)
	}
	// A run that was read behind a gap is read again.
	if over := read + v.Bytes - all.Bytes; over < 0 || over > 4*int64(s.o.Workers)*reading.MaxRead {
		t.Errorf("%d bytes were read twice", over)
	}
	mustBeGone(t, progressFile(s))
	if v := resumeVerify(t, s); v.Bytes != all.Bytes || !v.Begun.IsZero() {
		t.Errorf("nothing to resume: %+v", v)
	}
	// Without being told to, it begins anew.
	interrupted(t, s, upkeep.VerifyOptions{}, 5<<20)
	if v := mustVerify(t, s, 0); v.Bytes != all.Bytes {
		t.Errorf("%+v", v)
	}
	mustBeGone(t, progressFile(s))
}

// TestVerifyOfAPartHasNoProgress: it neither saves progress, nor takes or spoils that of another.
func TestVerifyOfAPartHasNoProgress(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", bigFiles())
	interrupted(t, s, upkeep.VerifyOptions{}, 5<<20)
	before, err := os.ReadFile(progressFile(s))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []upkeep.VerifyOptions{{Names: []string{"a"}}, {Subset: 0.5}} {
		if _, err := s.Verify(t.Context(), o); err != nil {
			t.Error(err)
		}
		interrupted(t, s, o, 1)
		o.Resume = true
		if _, err := s.Verify(t.Context(), o); fault.ClassOf(err) != fault.Invalid || fault.HintOf(err) == "" {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if after, err := os.ReadFile(progressFile(s)); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the progress has changed: %v", err)
	}
}

// TestVerifyGoesOnAfterAKill takes the store as it is on disk in the middle of a verification, as a kill leaves it.
func TestVerifyGoesOnAfterAKill(t *testing.T) {
	opts := testOptions(t)
	opts.Workers = 1 // nothing is written while it copies
	s := newTestStore(t, opts)
	write(t, s, "a", bigFiles())
	flip(t, s.chunks.Packs.PackPath(1), 5)
	c := &testClock{step: upkeep.SaveEvery}
	s.upkeep.Hooks.Clock = c.clock()
	killed := filepath.Join(t.TempDir(), "store")
	var once sync.Once
	o := upkeep.VerifyOptions{Progress: func(done, _ int64) {
		if done >= 24<<20 {
			once.Do(func() { copyStore(t, s.dir, killed) })
		}
	}}
	if v, err := s.Verify(t.Context(), o); err != nil || len(v.Problems) != 1 {
		t.Fatalf("%+v, %v", v, err)
	}
	s = openTestStore(t, killed, s.o)
	v := resumeVerify(t, s)
	if len(v.Problems) != 1 || v.Problems[0].File == "" || v.Earlier == 0 {
		t.Errorf("%+v", v)
	}
}

// copyStore copies a store, holes as holes.
func copyStore(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestVerifyGoesOnAndFindsOldDamage: the result of the last part tells of damage in the parts before, also where the
// record of it was lost; what was healed or put right meanwhile is no problem any more.
func TestVerifyGoesOnAndFindsOldDamage(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) *Store {
		s := newTestStore(t, testOptions(t))
		write(t, s, "a", bigFiles())
		flip(t, s.chunks.Packs.PackPath(1), 5)
		interrupted(t, s, upkeep.VerifyOptions{}, 24<<20)
		return reopen(t, s)
	}
	check := func(t *testing.T, s *Store, problems int) upkeep.VerifyResult {
		t.Helper()
		v := resumeVerify(t, s)
		if len(v.Problems) != problems {
			t.Errorf("%d problems, want %d: %+v", len(v.Problems), problems, v.Problems)
		}
		mustVerify(t, s, problems)
		return v
	}
	t.Run("recorded", func(t *testing.T) {
		if v := check(t, begin(t), 1); v.Earlier == 0 {
			t.Errorf("%+v", v)
		}
	})
	t.Run("record lost", func(t *testing.T) {
		s := begin(t)
		if len(s.chunks.DamagedChunks()) != 1 {
			t.Fatalf("damage %v", s.chunks.DamagedChunks())
		}
		for id, loc := range s.chunks.DamagedChunks() {
			s.chunks.SetSound(pack.Chunk{ID: id, Loc: loc})
		}
		check(t, s, 1)
	})
	t.Run("put right", func(t *testing.T) {
		s := begin(t)
		flip(t, s.chunks.Packs.PackPath(1), 5)
		check(t, s, 0)
	})
	t.Run("stored anew", func(t *testing.T) {
		s := begin(t)
		write(t, s, "b", bigFiles())
		check(t, s, 0)
	})
	t.Run("interrupted again", func(t *testing.T) {
		s := begin(t)
		interrupted(t, s, upkeep.VerifyOptions{Resume: true}, 1)
		if v := check(t, reopen(t, s), 1); v.Earlier == 0 {
			t.Errorf("%+v", v)
		}
	})
}

// TestVerifyGoesOnBesideChanges changes the packs between the parts. What is new is read: damage in it is found.
func TestVerifyGoesOnBesideChanges(t *testing.T) {
	t.Parallel()
	remove := func(t *testing.T, s *Store, name string) {
		t.Helper()
		if err := s.Remove(t.Context(), []string{name}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.GC(t.Context(), upkeep.GCOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(s *Store, n uint32) bool { return s.chunks.Packs.Exists(n) }
	t.Run("grown", func(t *testing.T) {
		s := newTestStore(t, testOptions(t))
		write(t, s, "a", map[string][]byte{"f": memory(1, 8<<20)})
		st, err := os.Stat(s.chunks.Packs.PackPath(1))
		if err != nil {
			t.Fatal(err)
		}
		interrupted(t, s, upkeep.VerifyOptions{}, st.Size()) // all has been read
		write(t, s, "b", map[string][]byte{"f": memory(2, 4<<20)})
		flip(t, s.chunks.Packs.PackPath(1), st.Size()+5)
		if v := resumeVerify(t, s); len(v.Problems) != 1 || v.Earlier != st.Size() {
			t.Errorf("%+v", v)
		}
	})
	t.Run("punched", func(t *testing.T) {
		s := newTestStore(t, testOptions(t))
		write(t, s, "a", map[string][]byte{"f": memory(1, 8<<20)})
		write(t, s, "b", bigFiles())
		interrupted(t, s, upkeep.VerifyOptions{}, 25<<20)
		remove(t, s, "a")
		if v := resumeVerify(t, s); len(v.Problems) != 0 || v.Earlier == 0 {
			t.Errorf("%+v", v)
		}
	})
	t.Run("dropped", func(t *testing.T) {
		s := newTestStore(t, testOptions(t))
		write(t, s, "a", map[string][]byte{"f": noise(1, 40<<20)})
		write(t, s, "b", map[string][]byte{"f": noise(2, 20<<20)})
		interrupted(t, s, upkeep.VerifyOptions{}, 35<<20)
		remove(t, s, "a")
		if exists(s, 1) {
			t.Fatal("the first pack is still there")
		}
		v := resumeVerify(t, s)
		if len(v.Problems) != 0 || v.Bytes+v.Earlier != mustVerify(t, s, 0).Bytes {
			t.Errorf("%+v", v)
		}
	})
	t.Run("number used again", func(t *testing.T) {
		s := newTestStore(t, testOptions(t))
		write(t, s, "a", map[string][]byte{"f": memory(1, 4<<20)})
		interrupted(t, s, upkeep.VerifyOptions{}, 1)
		part, err := os.ReadFile(progressFile(s))
		if err != nil {
			t.Fatal(err)
		}
		remove(t, s, "a")
		s = reopen(t, s)
		write(t, s, "b", map[string][]byte{"f": memory(2, 4<<20)})
		n := s.chunks.Packs.Active()
		packs := progressOf(t, part, s)
		if len(packs) != 1 || n == 0 {
			t.Fatalf("packs %v, %d takes appends", packs, n)
		}
		var last pack.Chunk
		if _, _, err := s.chunks.Packs.Read(n, 0, func(r pack.Record) error {
			if r.Chunk != nil {
				last = *r.Chunk
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		flip(t, s.chunks.Packs.PackPath(n), last.Loc.Offset())
		for _, p := range packs {
			packs = map[uint32]upkeep.ReadPart{n: {Page: last.Loc.Page, Sum: p.Sum}} // only the sum is of other slots
		}
		if err := os.WriteFile(progressFile(s), upkeep.EncodeProgress(time.Now(), packs, s.config.identity()),
			0o600); err != nil {
			t.Fatal(err)
		}
		if v := resumeVerify(t, s); len(v.Problems) != 1 || v.Earlier != 0 {
			t.Errorf("%+v", v)
		}
	})
}

func progressOf(t *testing.T, b []byte, s *Store) map[uint32]upkeep.ReadPart {
	t.Helper()
	_, packs, err := upkeep.DecodeProgress(b, s.config.identity())
	if err != nil || len(packs) == 0 {
		t.Fatalf("%v, %v", packs, err)
	}
	return packs
}

// TestHostileProgress puts all kinds of things in the place of the progress: nothing in it keeps payload from being
// read.
func TestHostileProgress(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", bigFiles())
	all := mustVerify(t, s, 0)
	flip(t, s.chunks.Packs.PackPath(1), 5)
	interrupted(t, s, upkeep.VerifyOptions{}, 25<<20)
	good, err := os.ReadFile(progressFile(s))
	if err != nil {
		t.Fatal(err)
	}
	packs := progressOf(t, good, s)
	id := s.config.identity()
	change := func(f func(p *upkeep.ReadPart)) []byte {
		out := map[uint32]upkeep.ReadPart{}
		for n, p := range packs {
			f(&p)
			out[n] = p
		}
		return upkeep.EncodeProgress(time.Now(), out, id)
	}
	double := append(bytes.Clone(good[:upkeep.ProgressHead+upkeep.ProgressEntry]),
		good[upkeep.ProgressHead:upkeep.ProgressHead+upkeep.ProgressEntry]...)
	flipped := bytes.Clone(good)
	flipped[upkeep.ProgressHead] ^= 1
	for name, b := range map[string][]byte{
		"empty":          {},
		"noise":          bytes.Repeat([]byte("verify"), 1000),
		"cut":            good[:len(good)-1],
		"entry gone":     good[:len(good)-upkeep.ProgressEntry],
		"longer":         append(bytes.Clone(good), make([]byte, upkeep.ProgressEntry)...),
		"a bit":          flipped,
		"twice":          double,
		"too long":       make([]byte, upkeep.ProgressHead+(upkeep.MaxProgressPacks+1)*upkeep.ProgressEntry+4),
		"another store":  upkeep.EncodeProgress(time.Now(), packs, [16]byte{1}),
		"all pages":      change(func(p *upkeep.ReadPart) { p.Page = 1<<32 - 1 }),
		"another page":   change(func(p *upkeep.ReadPart) { p.Page++ }),
		"the first page": change(func(p *upkeep.ReadPart) { p.Page = 0 }),
		"another sum":    change(func(p *upkeep.ReadPart) { p.Sum[15] ^= 1 }),
		"packs not there": upkeep.EncodeProgress(time.Now(),
			map[uint32]upkeep.ReadPart{0: {}, 77: packs[1], 1<<32 - 1: packs[1]}, id),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(progressFile(s), b, 0o600); err != nil {
				t.Fatal(err)
			}
			if v := resumeVerify(t, s); v.Bytes != all.Bytes || v.Earlier != 0 || len(v.Problems) != 1 {
				t.Errorf("%+v", v)
			}
		})
	}
	if err := errors.Join(s.Close(), unix.Mkfifo(progressFile(s), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), s.dir, s.o); fault.ClassOf(err) != fault.Corrupt || fault.HintOf(err) == "" {
		t.Errorf("a store with a pipe: %v", err)
	}
}

// TestProgressThatCannotBeSaved: a verification does not fail for that, and damage that could not be recorded is no
// progress.
func TestProgressThatCannotBeSaved(t *testing.T) {
	o := testOptions(t)
	fail := ""
	o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		if fail != "" && c.Op == storage.OpSync && strings.Contains(c.Name, fail) {
			return storage.Fault{Kind: storage.Late}
		}
		return storage.Fault{}
	}}
	s := newTestStore(t, o)
	write(t, s, "a", bigFiles())
	fail = upkeep.ProgressName
	s.upkeep.Hooks.Clock = (&testClock{step: upkeep.SaveEvery}).clock()
	mustVerify(t, s, 0)
	interrupted(t, s, upkeep.VerifyOptions{}, 24<<20)
	mustBeGone(t, progressFile(s))
	fail = ""
	flip(t, s.chunks.Packs.PackPath(1), 5)
	s.upkeep.Hooks.Clock = nil
	fail = ".journal"
	interrupted(t, s, upkeep.VerifyOptions{}, 24<<20)
	mustBeGone(t, progressFile(s))
	fail = ""
	mustVerify(t, s, 1)
	mustBeGone(t, progressFile(s)+".new")
}
