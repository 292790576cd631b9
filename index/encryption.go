package index

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// encryption is what the configuration of an encrypted store says; see package cipher.
const encryption = "aes-256-gcm"

// ringCopy is the copy of the file keyring. Each is a line with the CRC-32C of the rest in hex, and the ring. Without
// one of them nobody can open the store any more.
const ringCopy = keyring.FileName + ".copy"

// Encrypted says whether the store is encrypted.
func (c Config) Encrypted() bool { return c.Encryption != "" }

// saveRing writes the ring of a store, its copy first: a crash leaves both whole.
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

// loadRing reads the ring of a store. Both files have to be whole, unless either will do.
func loadRing(st storage.Storage, dir string, either bool) (*keyring.Ring, error) {
	path := filepath.Join(dir, keyring.FileName)
	ring, err := readRing(st, path)
	again, copyErr := readRing(st, filepath.Join(dir, ringCopy))
	switch {
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
		return nil, &fault.Error{Class: fault.Unsupported, Op: "open store", File: path, Err: err, Hint: "use a later gpucr-fs"}
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
func (o *Options) mendRing(dir string, config Config) error {
	if !config.Encrypted() {
		return nil
	}
	if _, err := loadRing(o.Storage, dir, false); err == nil {
		return nil
	}
	r, err := loadRing(o.Storage, dir, true)
	if err != nil {
		return err
	}
	return fault.Classify("repair", saveRing(o.Storage, dir, r))
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
func Ring(dir string) (*keyring.Ring, error) {
	config, err := LoadConfig(dir)
	if err != nil {
		return nil, err
	}
	if !config.Encrypted() {
		return nil, &fault.Error{Class: fault.Invalid, Op: "read keys", File: dir, Err: errors.New("the store is not encrypted"),
			Hint: "only gpucr-fs init --encrypt makes one that is"}
	}
	return loadRing(storage.Disk{}, dir, true)
}

// SetRing changes the wrapped keys of the store at dir, which may be open. Class Invalid where they are of another
// store.
func SetRing(dir string, r *keyring.Ring) error {
	const op = "write keys"
	now, err := Ring(dir)
	if err != nil {
		return err
	}
	if !now.Same(r) {
		return &fault.Error{Class: fault.Invalid, Op: op, File: dir, Err: errors.New("these are keys of another store")}
	}
	return fault.Classify(op, saveRing(storage.Disk{}, dir, r))
}
