package index

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// letters wraps a key by another alphabet. It stands for a key service, and is quick.
const letters = "tr A-Za-z N-ZA-Mn-za-m"

var withLetters = keyring.Access{Command: letters}

// newSecretStore makes an encrypted store, without opening it.
func newSecretStore(t testing.TB) (dir string) {
	t.Helper()
	ring, err := keyring.Make(t.Context(), keyring.Wrap{Command: letters})
	must(t, err)
	dir = filepath.Join(t.TempDir(), "store")
	must(t, Init(dir, InitOptions{PackSize: 16 << 20, Ring: ring}))
	return dir
}

func secretOptions(t testing.TB) Options {
	o := testOptions(t)
	o.Access = withLetters
	return o
}

// secrets are what no file of an encrypted store may hold.
func secrets(files map[string][]byte) [][]byte {
	out := [][]byte{[]byte("secret-name"), []byte("secret-label")}
	for _, b := range files {
		for off := 0; off+4096 <= len(b); off += 16 * 4096 {
			if page := b[off : off+4096]; !bytes.Equal(page, make([]byte, 4096)) {
				out = append(out, page[:64])
			}
		}
	}
	return out
}

// holdsNone fails when a file below dir has one of the secrets.
func holdsNone(t *testing.T, dir string, secrets [][]byte) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		for _, s := range secrets {
			if bytes.Contains(b, s) {
				t.Errorf("%s holds %q", p, s)
				break
			}
		}
		return err
	}))
}

func secretFiles() map[string][]byte {
	return map[string][]byte{
		"pages-1.img": memory(1, 6<<20), "secret-name.img": memory(2, 3<<20),
		"inventory.img": []byte("a small secret-name"),
	}
}

// TestEncryptedStore goes through what is done with a store: nothing of the contents, names and labels is on the disk.
func TestEncryptedStore(t *testing.T) {
	dir := newSecretStore(t)
	s := openTestStore(t, dir, secretOptions(t))
	files := secretFiles()
	write(t, s, "web", files)
	write(t, s, "gone", map[string][]byte{"pages-2.img": memory(9, 4<<20)})
	must(t, s.Label("web", map[string]string{"who": "secret-label"}))
	must(t, s.SetProfile("web", bytes.Repeat([]byte("secret-name"), 1000)))
	hot := bytes.Repeat([]byte("secret-name of the hot set "), 20000)
	must(t, s.SetHotSet("web", int64(len(hot)), func(w io.Writer) error { _, err := w.Write(hot); return err }))
	readAll := func(s *Store) {
		t.Helper()
		mustHold(t, s, "web", files)
		h, err := s.HotSet("web")
		must(t, err)
		defer h.Close()
		got, err := io.ReadAll(io.NewSectionReader(h, 0, h.Size()))
		must(t, err)
		if !bytes.Equal(got, hot) {
			t.Error("the hot set is another one")
		}
		v, err := s.Verify(t.Context(), VerifyOptions{})
		must(t, err)
		if len(v.Problems) > 0 || v.Chunks == 0 {
			t.Errorf("verify: %d chunks, %v", v.Chunks, v.Problems)
		}
	}
	readAll(s)
	must(t, s.Remove(t.Context(), []string{"gone"}))
	_, err := s.GC(t.Context(), GCOptions{})
	must(t, err)
	_, err = s.Optimize(t.Context(), OptimizeOptions{})
	must(t, err)
	readAll(s)
	must(t, s.Close())
	holdsNone(t, dir, secrets(files))

	must(t, os.RemoveAll(filepath.Join(dir, chunks.IndexFolder)))
	if res, err := Repair(t.Context(), dir, secretOptions(t)); err != nil || res.Checkpoints != 1 {
		t.Fatalf("repair from the journals: %+v, %v", res, err)
	}
	s = openTestStore(t, dir, secretOptions(t))
	readAll(s)
	must(t, s.Close())

	o := secretOptions(t)
	o.ReadOnly = true
	s = openTestStore(t, dir, o)
	mustHold(t, s, "web", files)
	must(t, s.Close())
	holdsNone(t, dir, secrets(files))
}

// TestLockedStore: without the key, or with another one, a store says so and stays as it is.
func TestLockedStore(t *testing.T) {
	dir := newSecretStore(t)
	s := openTestStore(t, dir, secretOptions(t))
	write(t, s, "web", secretFiles())
	must(t, s.Close())
	for name, c := range map[string]struct {
		access keyring.Access
		why    error
	}{
		"no key":         {keyring.Access{}, keyring.ErrNoKey},
		"another kind":   {keyring.Access{Identity: "/dev/null"}, keyring.ErrWrongKey},
		"another key":    {keyring.Access{Command: "head -c 32 /dev/zero | base64"}, keyring.ErrWrongKey},
		"no key at all":  {keyring.Access{Command: "echo it is closed >&2; false"}, keyring.ErrWrongKey},
		"endless output": {keyring.Access{Command: "yes"}, keyring.ErrWrongKey},
	} {
		o := testOptions(t)
		o.Access = c.access
		_, err := Open(t.Context(), dir, o)
		if !errors.Is(err, c.why) || ClassOf(err) != fault.Locked || HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", name, err, HintOf(err))
		}
		if _, err := Repair(t.Context(), dir, o); !errors.Is(err, c.why) {
			t.Errorf("repair with %s: %v", name, err)
		}
	}
	mustHold(t, openTestStore(t, dir, secretOptions(t)), "web", secretFiles())
}

// TestRingDamage: a flipped byte of either file of wrapped keys is found, and repair puts it right by the other.
func TestRingDamage(t *testing.T) {
	dir := newSecretStore(t)
	must(t, openTestStore(t, dir, secretOptions(t)).Close())
	for _, name := range []string{keyring.FileName, ringCopy} {
		path := filepath.Join(dir, name)
		whole, err := os.ReadFile(path)
		must(t, err)
		for off := 0; off < len(whole); off += 7 {
			b := bytes.Clone(whole)
			b[off] ^= 4
			must(t, os.WriteFile(path, b, 0o600))
			if _, err := Open(t.Context(), dir, secretOptions(t)); ClassOf(err) != fault.Corrupt {
				t.Fatalf("%s with byte %d altered: %v", name, off, err)
			}
		}
		_, err = Repair(t.Context(), dir, secretOptions(t))
		must(t, err)
		must(t, openTestStore(t, dir, secretOptions(t)).Close())
	}
}

// TestTwoStoresShareNoID: the same content has other ids in another store, and the same ones in the same store.
func TestTwoStoresShareNoID(t *testing.T) {
	ids := map[string]int{}
	n := 0
	for range 2 {
		s := openTestStore(t, newSecretStore(t), secretOptions(t))
		for _, name := range []string{"a", "b"} {
			write(t, s, name, secretFiles())
		}
		if st := s.Stats(); st.ChunksNew != st.ChunksDup {
			t.Errorf("%d chunks were stored, %d found: within a store content is stored once", st.ChunksNew,
				st.ChunksDup)
		}
		must(t, s.chunks.DB.Chunks(func(id chunk.ID, _ pack.Loc, err error) error {
			ids[id.String()]++
			n++
			return err
		}))
	}
	if len(ids) != n || n == 0 {
		t.Errorf("%d chunks have %d ids", n, len(ids))
	}
}

// TestChangeOfKeysKilled leaves the files of wrapped keys as a change leaves them that is killed between the two, or
// before the second is on the disk. Those who could open the store can do so after the other file is damaged as well.
func TestChangeOfKeysKilled(t *testing.T) {
	for _, first := range []string{ringCopy, keyring.FileName} {
		for name, between := range map[string]func(dir string) error{
			"opened": func(dir string) error {
				s, err := Open(t.Context(), dir, secretOptions(t))
				if err != nil {
					return err
				}
				return s.Close()
			},
			"repaired": func(dir string) error {
				_, err := Repair(t.Context(), dir, secretOptions(t))
				return err
			},
			"changed": func(dir string) error {
				_, err := ChangeRing(t.Context(), dir, func(r *keyring.Ring) error {
					return r.Add(t.Context(), withLetters, keyring.Wrap{Command: letters})
				})
				return err
			},
		} {
			t.Run(first+" damaged, "+name, func(t *testing.T) {
				dir := newSecretStore(t)
				was, err := os.ReadFile(filepath.Join(dir, keyring.FileName))
				must(t, err)
				_, err = ChangeRing(t.Context(), dir, func(r *keyring.Ring) error {
					return r.Rotate(t.Context(), withLetters, keyring.Wrap{Command: "tr A-Za-z B-ZAb-za"})
				})
				must(t, err)
				must(t, os.WriteFile(filepath.Join(dir, keyring.FileName), was, 0o600))
				must(t, between(dir))
				must(t, os.WriteFile(filepath.Join(dir, first), []byte("damaged"), 0o600))
				if _, err := Repair(t.Context(), dir, secretOptions(t)); err != nil {
					t.Fatalf("those who had the key are locked out: %v", err)
				}
				must(t, openTestStore(t, dir, secretOptions(t)).Close())
			})
		}
	}
}

// TestKeysChangedAtOnce: of two changes that are made at once none undoes the other.
func TestKeysChangedAtOnce(t *testing.T) {
	dir := newSecretStore(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := ChangeRing(t.Context(), dir, func(r *keyring.Ring) error {
				return r.Add(t.Context(), withLetters, keyring.Wrap{Command: letters})
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if r, err := Ring(dir); err != nil || len(r.Keys) != 9 {
		t.Errorf("of nine keys there are %+v, %v", r, err)
	}
}

// pairs notes what is encrypted under which key and nonce.
type pairs struct {
	mu    sync.Mutex
	seen  map[pair][32]byte
	twice int
}

type pair struct {
	salt  cipher.Salt
	nonce uint64
}

func (p *pairs) used(salt cipher.Salt, nonce uint64, plain []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := sha256.Sum256(plain)
	if before, ok := p.seen[pair{salt, nonce}]; ok && before != sum {
		p.twice++
	}
	p.seen[pair{salt, nonce}] = sum
}

// crashed gives a copy of a store as a crash would leave it at this moment; its index is built anew.
func crashed(t *testing.T, dir string, o Options) (copied string) {
	t.Helper()
	copied = filepath.Join(t.TempDir(), "store")
	must(t, os.CopyFS(copied, os.DirFS(dir)))
	must(t, os.RemoveAll(filepath.Join(copied, chunks.IndexFolder)))
	_, err := Repair(t.Context(), copied, o)
	must(t, err)
	return copied
}

// nonceProgram writes to a store, crashes it at moments that the seed chooses, and goes on differently from there.
func nonceProgram(t *testing.T, seed uint64, hooks cipher.Hooks) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	o := secretOptions(t)
	o.Logger = nil
	o.Tuning.Cipher, o.Tuning.CommitEvery = hooks, 256<<10
	dir := newSecretStore(t)
	for life := range 4 {
		s, err := Open(t.Context(), dir, o)
		must(t, err)
		name := fmt.Sprint("c", life)
		write(t, s, name, map[string][]byte{"pages-1.img": memory(r.Uint64(), 1<<20)})
		d, err := s.Create(t.Context(), "half", drafts.CreateOptions{})
		must(t, err)
		fill(t, d, map[string][]byte{"pages-2.img": memory(r.Uint64(), (1+r.IntN(8))<<17)})
		must(t, s.chunks.Commit(nil))
		after := dir
		if r.IntN(3) > 0 {
			after = crashed(t, dir, o)
		}
		// What the crashed life still wrote has no place in the copy: it is given out again there.
		fill(t, d, map[string][]byte{"pages-3.img": memory(r.Uint64(), (1+r.IntN(8))<<17)})
		must(t, d.Abort())
		if r.IntN(2) == 0 {
			must(t, s.Remove(t.Context(), []string{name}))
			_, err := s.GC(t.Context(), GCOptions{})
			must(t, err)
			write(t, s, "again", map[string][]byte{"pages-1.img": memory(r.Uint64(), 1<<20)})
			must(t, s.Remove(t.Context(), []string{"again"}))
		}
		_, err = s.Optimize(t.Context(), OptimizeOptions{})
		must(t, err)
		must(t, s.Close())
		dir = after
	}
}

// TestNoNonceTwice: over crashes, collections and moves no key and nonce encrypt two plaintexts. With one key for all
// packs they do, and the test sees it.
func TestNoNonceTwice(t *testing.T) {
	p := &pairs{seen: map[pair][32]byte{}}
	for seed := range uint64(6) {
		nonceProgram(t, seed, cipher.Hooks{Used: p.used})
	}
	if p.twice > 0 || len(p.seen) < 500 {
		t.Errorf("of %d keys and nonces %d encrypt more than one plaintext", len(p.seen), p.twice)
	}
	constant := &pairs{seen: map[pair][32]byte{}}
	nonceProgram(t, 1, cipher.Hooks{Used: constant.used, Salt: func() cipher.Salt { return cipher.Salt{1} }})
	if constant.twice == 0 {
		t.Error("with one key for all the test sees nothing: it proves nothing")
	}
}

// TestResumedPackHasAnotherKey: a pack that takes appends again is encrypted with another key from there on.
func TestResumedPackHasAnotherKey(t *testing.T) {
	dir := newSecretStore(t)
	salts := map[cipher.Salt]uint32{}
	for i, name := range []string{"a", "b"} {
		s := openTestStore(t, dir, secretOptions(t))
		write(t, s, name, map[string][]byte{"pages-1.img": memory(uint64(i), 2<<20)})
		must(t, s.chunks.DB.Chunks(func(_ chunk.ID, loc pack.Loc, err error) error {
			salts[loc.Seal.Salt] = loc.Pack
			return err
		}))
		must(t, s.Close())
	}
	numbers := map[uint32]int{}
	for _, n := range salts {
		numbers[n]++
	}
	if len(salts) != 2 || len(numbers) != 1 {
		t.Errorf("two lives have written with %d keys to %d packs", len(salts), len(numbers))
	}
}

// TestFlippedBytesOfSecrets alters bits of packs and journals: each is found, and never are other bytes read.
func TestFlippedBytesOfSecrets(t *testing.T) {
	dir := newSecretStore(t)
	files := map[string][]byte{"pages-1.img": memory(1, 1<<20), "core.img": []byte("core")}
	s := openTestStore(t, dir, secretOptions(t))
	write(t, s, "web", files)
	must(t, s.Close())
	r := rand.New(rand.NewPCG(1, 1))
	found := 0
	for _, pattern := range []string{"packs/*"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		must(t, err)
		for _, name := range names {
			whole, err := os.ReadFile(name)
			must(t, err)
			for range 40 {
				b := bytes.Clone(whole)
				b[r.IntN(len(b))] ^= 1 << r.IntN(8)
				must(t, os.WriteFile(name, b, 0o600))
				if flippedIsFound(t, dir, files) {
					found++
				} else {
					t.Errorf("a flipped bit of %s was not found", name)
				}
				must(t, os.WriteFile(name, whole, 0o600))
			}
		}
	}
	if found < 80 {
		t.Errorf("%d were found", found)
	}
}

func flippedIsFound(t *testing.T, dir string, files map[string][]byte) bool {
	t.Helper()
	o := secretOptions(t)
	o.ReadOnly, o.Logger = true, nil
	s, err := Open(t.Context(), dir, o)
	if err != nil {
		return true
	}
	defer s.Close()
	found := false
	for name, want := range files {
		got, err := read(s, "web", name)
		found = found || err != nil
		if err == nil && !bytes.Equal(got, want) {
			t.Errorf("%s has other bytes", name)
		}
	}
	v, err := s.Verify(t.Context(), VerifyOptions{})
	return found || err != nil || len(v.Problems) > 0 || len(v.SetAside) > 0
}
