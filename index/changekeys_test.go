package index

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/keyring/keyringtest"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// keysDir is the store of keyFiles. It is on no disk.
const keysDir = "/in-memory/store"

// keyFiles are the files of an encrypted store that opening it begins with, in memory, before and after a change of its
// keys that lets nobody of before open it.
type keyFiles struct {
	t        *testing.T
	config   []byte
	old, new keyring.Access
	before   *keyring.Ring
	after    *keyring.Ring
}

func newKeyFiles(t *testing.T) *keyFiles {
	t.Helper()
	k := &keyFiles{t: t}
	who := func(a *keyring.Access) (recipient string) {
		identity, recipient := keyringtest.Identity(t)
		a.Identity = filepath.Join(t.TempDir(), "identity")
		must(t, os.WriteFile(a.Identity, []byte(identity), 0o600))
		return recipient
	}
	var err error
	k.before, err = keyring.Make(t.Context(), keyring.Wrap{Recipients: []string{who(&k.old)}})
	must(t, err)
	k.after = k.before.Clone()
	must(t, k.after.Rotate(t.Context(), k.old, keyring.Wrap{Recipients: []string{who(&k.new)}}))
	dir := filepath.Join(t.TempDir(), "store")
	must(t, Init(dir, InitOptions{Ring: k.before}))
	k.config, err = os.ReadFile(filepath.Join(dir, configName))
	must(t, err)
	return k
}

// make gives the files as they are before the change, durably.
func (k *keyFiles) make() *storage.Mem {
	k.t.Helper()
	m := storage.NewMem(keysDir)
	must(k.t, storage.WriteFile(m, filepath.Join(keysDir, configName), k.config))
	must(k.t, saveRing(m, keysDir, k.before))
	return m
}

func (k *keyFiles) change(st storage.Storage) error {
	_, err := changeRing(k.t.Context(), st, keysDir, func(r *keyring.Ring) error {
		*r = *k.after.Clone()
		return nil
	})
	return err
}

// opens says who can open the store on these files: those with the new keys, or those with the old ones. Nobody is an
// error.
func (k *keyFiles) opens(st storage.Storage) (fresh bool, err error) {
	k.t.Helper()
	config, err := loadConfig(st, keysDir)
	if err != nil {
		return false, err
	}
	for _, fresh := range []bool{true, false} {
		o := Options{Storage: st, Access: k.old, Logger: slog.New(slog.DiscardHandler)}
		if fresh {
			o.Access = k.new
		}
		switch err := o.unlock(k.t.Context(), keysDir, config); {
		case err == nil:
			o.coder.Wipe()
			return fresh, nil
		case fault.ClassOf(err) != fault.Locked:
			return false, err
		}
	}
	return false, fmt.Errorf("neither the old nor the new keys open it")
}

// crashes is how many of the states are looked at that a power cut at one moment can leave.
const crashes = 8

// wantOpen holds the files against what may be left of a change, as they are and after power cuts.
func (k *keyFiles) wantOpen(what string, m *storage.Mem, changed bool) {
	k.t.Helper()
	image := m.Snapshot()
	for seed := range uint64(crashes + 1) {
		left := image.Now()
		if seed > 0 {
			left = image.Crash(seed)
		}
		fresh, err := k.opens(left)
		if err != nil || changed && !fresh {
			k.t.Fatalf("%s, power cut %d: with the new keys: %t, %v", what, seed, fresh, err)
		}
		if err := k.change(left); err != nil {
			k.t.Fatalf("%s, power cut %d: the next change: %v", what, seed, err)
		}
		if fresh, err := k.opens(left); !fresh || err != nil {
			k.t.Fatalf("%s, power cut %d, after the next change: with the new keys: %t, %v", what, seed, fresh, err)
		}
	}
}

// TestChangeOfKeysFailsAnywhere fails every call of a change of keys in every way, and cuts the power before each: the
// store opens with the old or with the new keys, with the new ones once the change has succeeded, and keys can be
// changed again.
func TestChangeOfKeysFailsAnywhere(t *testing.T) {
	t.Parallel()
	k := newKeyFiles(t)
	faults := map[string]storage.Fault{
		"fails":                 {Kind: storage.Fail, Err: unix.EIO},
		"has no space":          {Kind: storage.Fail, Err: unix.ENOSPC},
		"fails when it is done": {Kind: storage.Late, Err: unix.EIO},
	}
	for seed := range uint64(3) {
		short, drop := fmt.Sprintf("is cut short (%d)", seed), fmt.Sprintf("drops its data (%d)", seed)
		faults[short] = storage.Fault{Kind: storage.Short, Err: unix.ENOSPC, Seed: seed}
		faults[drop] = storage.Fault{Kind: storage.Drop, Seed: seed}
	}
	for name, f := range faults {
		for at := 0; ; at++ {
			m := k.make()
			n, what := 0, ""
			err := k.change(&storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
				if n++; n-1 != at {
					return storage.Fault{}
				}
				what = fmt.Sprintf("call %d, %s of %s, %s", at, c.Op, filepath.Base(c.Name), name)
				return f
			}})
			if what == "" {
				if err != nil || n < 20 {
					t.Fatalf("a change makes %d calls, and %v", n, err)
				}
				break
			}
			k.wantOpen(what, m, err == nil)
		}
	}
}

// TestPowerCutInChangeOfKeys cuts the power before each call of a change of keys that changes files.
func TestPowerCutInChangeOfKeys(t *testing.T) {
	t.Parallel()
	k := newKeyFiles(t)
	m := k.make()
	type moment struct {
		image *storage.Image
		call  storage.Call
	}
	var mu sync.Mutex
	var moments []moment
	must(t, k.change(&storage.Faulty{Storage: m, Rule: func(c storage.Call) storage.Fault {
		mu.Lock()
		defer mu.Unlock()
		if c.Op.Changes() {
			moments = append(moments, moment{m.Snapshot(), c})
		}
		return storage.Fault{}
	}}))
	for _, at := range moments {
		k.wantOpen(fmt.Sprintf("before %s of %s", at.call.Op, filepath.Base(at.call.Name)), at.image.Now(), false)
	}
	if len(moments) < 8 {
		t.Errorf("a change of keys has %d calls that change files", len(moments))
	}
	k.wantOpen("after the change", m, true)
}
