package remote_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/nodecache"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// letters wraps a key by another alphabet. It stands for a key service, and is quick.
const letters = "tr A-Za-z N-ZA-Mn-za-m"

// secretMachine gives a machine with an encrypted store beside an encrypted bucket, which it makes or joins.
func secretMachine(t *testing.T, b bucket.Bucket, hooks cipher.Hooks) *machine {
	t.Helper()
	ring, err := keyring.Make(t.Context(), keyring.Wrap{Command: letters})
	must(t, err)
	o := hasty
	o.Ring = ring
	s, _, err := remote.Make(t.Context(), b, chunk.DefaultParams(), o)
	must(t, err)
	ring = s.Config().Ring
	access := keyring.Access{Command: letters}
	if o.Cipher, err = ring.Open(t.Context(), access); err != nil {
		t.Fatal(err)
	}
	o.Cipher.Hooks = hooks
	m := &machine{dir: filepath.Join(t.TempDir(), "store")}
	m.remote, err = remote.Open(t.Context(), b, o)
	must(t, err)
	must(t, index.Init(m.dir, index.InitOptions{Ring: ring}))
	cache, err := nodecache.Open(nodecache.Options{Dir: filepath.Join(m.dir, "cache"), Limit: 1 << 30, Sealed: true,
		Storage: storage.Disk{}, Source: m.remote, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	m.Store, err = index.Open(t.Context(), m.dir, index.Options{Distant: cache, FreeFloor: 1, Access: access,
		Tuning: index.Tuning{Cipher: hooks}})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// TestEncryptedBucket takes checkpoints from one machine to another. Neither the bucket nor what the machines keep has
// contents, names of files or labels.
func TestEncryptedBucket(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := secretMachine(t, b, cipher.Hooks{}), secretMachine(t, b, cipher.Hooks{})
	text := []byte(strings.Repeat("known words of a process ", 30000))
	web := map[string][]byte{"pages-1.img": noise(1, 5<<20), "secret-name.img": text, "core.img": []byte("secret-core")}
	one.dump(t, "web", web)
	must(t, one.Label("web", map[string]string{"who": "secret-label"}))
	must(t, one.SetProfile("web", []byte("secret-profile")))
	_, err := one.remote.Push(t.Context(), one.Store, "web")
	must(t, err)
	list, err := two.remote.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Labels["who"] != "secret-label" {
		t.Errorf("the list is %+v, %v", list, err)
	}
	_, err = two.remote.Pull(t.Context(), two.Store, "web", "web")
	must(t, err)
	for range 2 { // from the bucket, from the node's cache
		must(t, two.holds("web", web))
	}
	v, err := two.remote.Verify(t.Context(), remote.VerifyOptions{Holds: two.Holds})
	if err != nil || len(v.Problems) > 0 || v.Bytes == 0 {
		t.Errorf("verify: %+v, %v", v, err)
	}
	more := map[string][]byte{"pages-1.img": append(bytes.Clone(web["pages-1.img"]), noise(2, 1<<20)...)}
	two.dump(t, "web-2", more)
	p, err := two.remote.Push(t.Context(), two.Store, "web-2")
	if err != nil || p.Bytes > 2<<20 || p.Known == 0 {
		t.Errorf("what the bucket had went again: %+v, %v", p, err)
	}
	must(t, one.remote.Learn(t.Context(), one.Store))
	one.dump(t, "web-3", more)
	if p, err = one.remote.Push(t.Context(), one.Store, "web-3"); err != nil || p.Bytes > 1<<19 {
		t.Errorf("what others have taken to the bucket went again: %+v, %v", p, err)
	}

	known := [][]byte{[]byte("secret-"), []byte("known words of a process"), web["pages-1.img"][4096:4160]}
	for _, key := range b.Keys() {
		for _, s := range known {
			if bytes.Contains(b.Content(key), s) {
				t.Errorf("the object %s holds %q", key, s)
			}
		}
	}
	for _, dir := range []string{one.dir, two.dir} {
		must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(p)
			for _, s := range known {
				if bytes.Contains(text, s) {
					t.Errorf("%s holds %q", p, s)
				}
			}
			return err
		}))
	}

	other := secretMachine(t, memory.New(memory.Hooks{}), cipher.Hooks{})
	other.dump(t, "web", web)
	_, err = other.remote.Push(t.Context(), other.Store, "web")
	must(t, err)
	if one.remote.Config().Ring.Same(other.remote.Config().Ring) {
		t.Error("two remote stores have one key")
	}
}

// TestFlippedBytesOfBucket alters each object of an encrypted bucket: verify finds it, and a machine reads what was
// written or an error.
func TestFlippedBytesOfBucket(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := secretMachine(t, b, cipher.Hooks{})
	web := map[string][]byte{"pages-1.img": noise(1, 300_000), "core.img": []byte("core")}
	one.dump(t, "web", web)
	_, err := one.remote.Push(t.Context(), one.Store, "web")
	must(t, err)
	r := rand.New(rand.NewPCG(3, 3))
	put := func(key string, content []byte) {
		_, err := b.Put(t.Context(), key, bytes.NewReader(content), int64(len(content)), bucket.Cond{})
		must(t, err)
	}
	for _, key := range b.Keys() {
		whole := bytes.Clone(b.Content(key))
		if key == "config" {
			for off := range whole {
				altered := bytes.Clone(whole)
				altered[off] ^= 1 << (off % 8)
				put(key, altered)
				if _, err := remote.Open(t.Context(), b, hasty); err == nil {
					t.Errorf("byte %d of config, altered, was not found", off)
				}
			}
			put(key, whole)
			continue
		}
		for range 60 {
			altered := bytes.Clone(whole)
			altered[r.IntN(len(altered))] ^= 1 << r.IntN(8)
			put(key, altered)
			v, err := one.remote.Verify(t.Context(), remote.VerifyOptions{Holds: one.Holds})
			if err == nil && len(v.Problems) == 0 {
				t.Errorf("a flipped bit of %s was not found", key)
			}
		}
		altered := bytes.Clone(whole)
		altered[len(altered)/2] ^= 1
		put(key, altered)
		two := secretMachine(t, b, cipher.Hooks{})
		if _, err := two.remote.Pull(t.Context(), two.Store, "web", "web"); err == nil {
			for p, want := range web {
				c, err := two.Checkpoint("web")
				must(t, err)
				if got, err := fs.ReadFile(c.FS(), p); err == nil && !bytes.Equal(got, want) {
					t.Errorf("with %s altered, %s has other bytes", key, p)
				}
			}
		}
		put(key, whole)
	}
}

// pairs notes what is encrypted under which key and nonce.
type pairs struct {
	mu    sync.Mutex
	seen  map[string][32]byte
	twice int
}

func (p *pairs) used(salt cipher.Salt, nonce uint64, plain []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, sum := fmt.Sprint(salt, nonce), sha256.Sum256(plain)
	if before, ok := p.seen[at]; ok && before != sum {
		p.twice++
	}
	p.seen[at] = sum
}

var errLost = errors.New("the answer was lost")

// uploads pushes checkpoints while requests fail, with and without an effect, and pushes are given up and resumed.
func uploads(t *testing.T, hooks cipher.Hooks) {
	t.Helper()
	r := rand.New(rand.NewPCG(5, 5))
	var mu sync.Mutex
	faults := 0
	b := memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		if faults == 0 || r.IntN(4) > 0 {
			return true, nil
		}
		faults--
		return r.IntN(2) == 0, &bucket.Error{Class: bucket.Transient, Op: "test", Err: errLost}
	}})
	one, two := secretMachine(t, b, hooks), secretMachine(t, b, hooks)
	for i := range 6 {
		name := fmt.Sprint("c", i)
		one.dump(t, name, map[string][]byte{
			"pages-1.img": noise(uint64(i), 2<<20), "pages-2.img": noise(uint64(i/2), 1<<20),
		})
		mu.Lock()
		faults = 12
		mu.Unlock()
		for try := range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			if try < 2 {
				cancel()
			}
			_, err := one.remote.Push(ctx, one.Store, name)
			cancel()
			if err == nil {
				break
			}
		}
		mu.Lock()
		faults = 0
		mu.Unlock()
		_, err := one.remote.Push(t.Context(), one.Store, name)
		if err != nil && index.ClassOf(err) != index.InUse { // a root whose owner is not known any more
			t.Fatal(err)
		}
		if err == nil {
			_, err = two.remote.Pull(t.Context(), two.Store, name, name)
			must(t, err)
			must(t, two.holds(name, map[string][]byte{"pages-1.img": noise(uint64(i), 2<<20)}))
		}
	}
}

// TestNoNonceTwiceInBucket: over retries and resumed uploads no key and nonce encrypt two plaintexts; with one key for
// all packs they do.
func TestNoNonceTwiceInBucket(t *testing.T) {
	p := &pairs{seen: map[string][32]byte{}}
	uploads(t, cipher.Hooks{Used: p.used})
	if p.twice > 0 || len(p.seen) < 300 {
		t.Errorf("of %d keys and nonces %d encrypt more than one plaintext", len(p.seen), p.twice)
	}
	constant := &pairs{seen: map[string][32]byte{}}
	one := secretMachine(t, memory.New(memory.Hooks{}), cipher.Hooks{Used: constant.used,
		Salt: func() cipher.Salt { return cipher.Salt{1} }})
	for i := range 2 {
		name := fmt.Sprint("c", i)
		one.dump(t, name, map[string][]byte{"pages-1.img": noise(uint64(i), 2<<20)})
		_, err := one.remote.Push(t.Context(), one.Store, name)
		must(t, err)
	}
	if constant.twice == 0 {
		t.Error("with one key for all the test sees nothing: it proves nothing")
	}
}
