package index

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// encryption is what the configuration of an encrypted store says; see package cipher.
const encryption = "aes-256-gcm"

// ringCopy is the copy of the file keyring. Each is a line with the CRC-32C of the rest in hex, and the ring. Without
// one of them nobody can open the store any more.
const ringCopy = keyring.FileName + ".copy"

// Encrypted says whether the store is encrypted.
func (c Config) Encrypted() bool { return c.Encryption != "" }

// saveRing writes the ring of a store, its copy first: a crash leaves both whole, and maybe different. Then the file
// keyring counts, for nobody was told of the other; settleRing makes the copy its equal.
func saveRing(st storage.Storage, dir string, r *keyring.Ring) error {
	b, err := r.Encode()
	if err != nil {
		return err
	}
	b = append(fmt.Appendf(nil, "%08x\n", crc32c.Checksum(b)), b...)
	for _, name := range []string{ringCopy, keyring.FileName} {
		if err := storage.WriteFile(st, filepath.Join(dir, name), b); err != nil {
			return err
		}
	}
	return nil
}

func readRing(st storage.Storage, path string) (*keyring.Ring, error) {
	if info, err := st.Stat(path); err != nil {
		return nil, err
	} else if info.Dir || info.Odd {
		return nil, fmt.Errorf("%w: it is no file", keyring.ErrDamaged)
	}
	b, err := storage.ReadFile(st, path, keyring.MaxSize)
	if err != nil {
		return nil, err
	}
	sum, text, _ := strings.Cut(string(b), "\n")
	if sum != fmt.Sprintf("%08x", crc32c.Checksum([]byte(text))) {
		return nil, fmt.Errorf("%w: wrong checksum", keyring.ErrDamaged)
	}
	return keyring.Parse([]byte(text))
}

// loadRing reads the ring of a store. Both files have to be whole, unless either will do. Where they are of two stores,
// as after a backup of another store was put back, nobody but the owner can tell which is right.
func loadRing(st storage.Storage, dir string, either bool) (*keyring.Ring, error) {
	path := filepath.Join(dir, keyring.FileName)
	ring, err := readRing(st, path)
	again, copyErr := readRing(st, filepath.Join(dir, ringCopy))
	switch {
	case err == nil && copyErr == nil && !ring.Same(again):
		return nil, &fault.Error{Class: fault.Corrupt, Op: "open store", File: path,
			Err:  fmt.Errorf("it has the key of another store than its copy %s", ringCopy),
			Hint: "move the one of them away that is not of this store, then: gpucr-fs repair " + dir}
	case err == nil && copyErr == nil:
		return ring, nil
	case err == nil && either:
		return ring, nil
	case copyErr == nil && either:
		return again, nil
	case err == nil:
		path, err = filepath.Join(dir, ringCopy), copyErr
	}
	if errors.Is(err, keyring.ErrVersion) {
		return nil, &fault.Error{Class: fault.Unsupported, Op: "open store", File: path, Err: err,
			Hint: "use a later gpucr-fs"}
	}
	if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, keyring.ErrDamaged) {
		return nil, &fault.Error{Class: fault.OfOS(err), Op: "open store", File: path, Err: err}
	}
	hint := "restore it from a backup; the config of a remote store, if there is one, has the same keys"
	if (err == nil) != (copyErr == nil) || copyErr == nil || ring != nil {
		hint = "make it anew from its copy with: gpucr-fs repair " + dir
	}
	return nil, &fault.Error{Class: fault.Corrupt, Op: "open store", File: path, Err: err, Hint: hint}
}

// mendRing makes the file keyring and its copy anew where one of them is whole.
func (o *Options) mendRing(ctx context.Context, dir string, config Config) error {
	if !config.Encrypted() {
		return nil
	}
	lock, err := lockRing(ctx, o.Storage, dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := loadRing(o.Storage, dir, false); err == nil || keys.Lacks(err) { // the copy may be the older one
		return err
	}
	r, err := loadRing(o.Storage, dir, true)
	if err != nil {
		return err
	}
	return fault.Classify("repair", saveRing(o.Storage, dir, r))
}

// settleRing makes the copy of the file keyring like that where a change of keys was killed between the two. It would
// be used once keyring is damaged, and may be for others than those who can open the store.
func settleRing(st storage.Storage, dir string) error {
	if sameRings(st, dir) {
		return nil
	}
	lock, err := tryLockRing(st, dir)
	if held := (*storage.Locked)(nil); errors.As(err, &held) {
		return nil // the change that is going on writes both
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	r, err := loadRing(st, dir, false)
	if err != nil || sameRings(st, dir) {
		return err
	}
	return saveRing(st, dir, r)
}

// sameRings says whether keyring and its copy are the same, byte for byte.
func sameRings(st storage.Storage, dir string) bool {
	a, err := storage.ReadFile(st, filepath.Join(dir, keyring.FileName), keyring.MaxSize)
	b, copyErr := storage.ReadFile(st, filepath.Join(dir, ringCopy), keyring.MaxSize)
	return err == nil && copyErr == nil && bytes.Equal(a, b)
}

// ringLock is held by the one who changes the ring: the store's lock is held by the one who has it open, and keys may
// change meanwhile.
const ringLock = keyring.FileName + ".lock"

func tryLockRing(st storage.Storage, dir string) (io.Closer, error) {
	return st.Lock(filepath.Join(dir, ringLock), Holder(false))
}

// lockRing waits until nobody else changes the ring of the store at dir.
func lockRing(ctx context.Context, st storage.Storage, dir string) (io.Closer, error) {
	for {
		lock, err := tryLockRing(st, dir)
		if err == nil {
			return lock, nil
		}
		if held := (*storage.Locked)(nil); !errors.As(err, &held) {
			return nil, fault.Classify("lock keys", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// unlock unwraps the key of an encrypted store. Class Locked where the key is not given, or is another one.
func (o *Options) unlock(ctx context.Context, dir string, config Config) error {
	if !config.Encrypted() {
		return nil
	}
	r, err := loadRing(o.Storage, dir, o.ReadOnly)
	if err != nil {
		return err
	}
	if !o.ReadOnly {
		if err := settleRing(o.Storage, dir); err != nil { // a full disk must not keep who gives space back out
			o.Logger.Warn("the keyring has another copy, which could not be made anew", "store", dir, "err", err)
		}
	}
	if o.coder, err = r.Open(ctx, o.Access); err != nil {
		return lockedError("open store", dir, err)
	}
	o.coder.Hooks = o.Tuning.Cipher
	if o.Unlocked != nil {
		o.Unlocked(o.coder)
	}
	return nil
}

func lockedError(op, file string, err error) error {
	return &fault.Error{Class: fault.Locked, Op: op, File: file, Err: err, Hint: keyring.Hint}
}

// Ring gives the wrapped keys of the store at dir. Class Invalid where it is plain.
func Ring(dir string) (*keyring.Ring, error) { return ringOf(storage.Disk{}, dir) }

func ringOf(st storage.Storage, dir string) (*keyring.Ring, error) {
	config, err := loadConfig(st, dir)
	if err != nil {
		return nil, err
	}
	if !config.Encrypted() {
		return nil, &fault.Error{Class: fault.Invalid, Op: "read keys", File: dir,
			Err:  errors.New("the store is not encrypted"),
			Hint: "only gpucr-fs init --encrypt makes one that is"}
	}
	return loadRing(st, dir, true)
}

// ChangeRing changes the wrapped keys of the store at dir, which may be open, and gives the new ones. One change is
// made at a time. change may tell others of the ring as well. Class Invalid if change makes it the ring of another
// store.
func ChangeRing(ctx context.Context, dir string, change func(*keyring.Ring) error) (*keyring.Ring, error) {
	return changeRing(ctx, storage.Disk{}, dir, change)
}

func changeRing(
	ctx context.Context, st storage.Storage, dir string, change func(*keyring.Ring) error,
) (*keyring.Ring, error) {
	const op = "change keys"
	if _, err := ringOf(st, dir); err != nil {
		return nil, err
	}
	lock, err := lockRing(ctx, st, dir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	r, err := ringOf(st, dir)
	if err != nil {
		return nil, err
	}
	was := *r
	if err := change(r); err != nil {
		return nil, err
	}
	if !was.Same(r) {
		return nil, &fault.Error{Class: fault.Invalid, Op: op, File: dir,
			Err: errors.New("these are keys of another store")}
	}
	return r, fault.Classify(op, saveRing(st, dir, r))
}
