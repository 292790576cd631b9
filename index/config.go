package index

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/chunks"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/pack"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Format is the version of the on-disk format this build writes and reads.
const Format = 1

// encryptedFormat is that of a store that is encrypted.
const encryptedFormat = 2

const (
	configName = "config.json"
	lockName   = "lock"
)

// InitOptions of a new store. The zero value is usable.
type InitOptions struct {
	Compression Compression // default auto
	PackSize    int64       // default 1 GiB
	Chunk       *Params     // where files are cut; default those of every store
	// Ring has the wrapped key of an encrypted store; nil: the store is plain.
	Ring *keyring.Ring
	// Beside are files that the store's folder has from the beginning, by name.
	Beside map[string][]byte
}

// Params say where files are cut.
type Params = chunk.Params

// DefaultParams are those of a store that says nothing else.
func DefaultParams() Params { return chunk.DefaultParams() }

// Init makes an empty store in dir, which must not exist or be empty. Class Exists when dir holds a store, Invalid when
// it holds anything else.
func Init(dir string, o InitOptions) error {
	const op = "init store"
	if o.Compression == "" {
		o.Compression = CompressAuto
	}
	if err := o.Compression.validate(false); err != nil {
		return err
	}
	if o.PackSize == 0 {
		o.PackSize = 1 << 30
	}
	if o.PackSize < 16<<20 || o.PackSize > pack.MaxSize {
		return &fault.Error{Class: fault.Invalid, Op: op,
			Err: fmt.Errorf("pack size %d is not between 16 MiB and 1 TiB", o.PackSize)}
	}
	if err := makeFolder(dir); err != nil {
		return &fault.Error{Class: fault.OfOS(err), Op: op, Err: err}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return &fault.Error{Class: fault.OfOS(err), Op: op, Err: err}
	}
	for _, e := range entries {
		if e.Name() == configName {
			return &fault.Error{Class: fault.Exists, Op: op, File: dir, Err: errors.New("there is a store already"),
				Hint: "use it as it is, or choose another folder"}
		}
	}
	if len(entries) > 0 {
		return &fault.Error{Class: fault.Invalid, Op: op, File: dir, Err: errors.New("the folder is not empty"),
			Hint: "choose an empty or a new folder"}
	}
	var id [16]byte
	rand.Read(id[:])
	c := Config{Format: Format, ID: hex.EncodeToString(id[:]), Created: time.Now().UTC().Truncate(time.Second),
		Compression: o.Compression,
		Chunk:       chunk.DefaultParams(), PackSize: o.PackSize}
	if o.Chunk != nil {
		c.Chunk = *o.Chunk
	}
	if o.Ring != nil {
		c.Format, c.Encryption = encryptedFormat, encryption
	}
	for _, step := range []func() error{
		func() error { return os.Chmod(dir, 0o700) },
		func() error { return os.Mkdir(filepath.Join(dir, chunks.IndexFolder), 0o700) },
		func() error { return os.Mkdir(filepath.Join(dir, chunks.PacksFolder), 0o700) },
		func() error {
			for name, b := range o.Beside {
				if err := storage.WriteFile(storage.Disk{}, filepath.Join(dir, name), b); err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			if o.Ring == nil {
				return nil
			}
			return saveRing(storage.Disk{}, dir, o.Ring)
		},
		func() error { return c.save(storage.Disk{}, dir) }, // last: what has a config is a store
	} {
		if err := step(); err != nil {
			return &fault.Error{Class: fault.OfOS(err), Op: op, Err: err}
		}
	}
	return nil
}

// makeFolder makes a folder with those above it, durably where the folders above can be read and synced. The names of
// those that are there are made durable, too: an earlier process may have been killed before it was done.
func makeFolder(dir string) error {
	full, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	var above []string // of each folder on the way, the nearest first
	made := 0          // how many of them are made
	for p := full; p != filepath.Dir(p); p = filepath.Dir(p) {
		if _, err := os.Stat(p); errors.Is(err, os.ErrNotExist) {
			made++
		}
		above = append(above, filepath.Dir(p))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i, p := range above {
		err := storage.Disk{}.SyncDir(p)
		unable := errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
		if err != nil && !unable && i < made {
			return err
		}
	}
	return nil
}

// maxConfig bounds config.json in bytes; one that this program writes has some 300.
const maxConfig = 64 << 10

// LoadConfig reads the configuration of the store at dir. Class NoStore when there is none, Corrupt when it cannot be
// understood.
func LoadConfig(dir string) (Config, error) { return loadConfig(storage.Disk{}, dir) }

// loadConfig reads config.json and holds it against its copy, where there is one.
func loadConfig(st storage.Storage, dir string) (Config, error) {
	c, err := readConfig(st, dir)
	again, noCopy := readConfigCopy(st, dir)
	switch class := fault.ClassOf(err); {
	case noCopy != nil, err == nil && c == again:
		return c, err
	case err == nil:
		err = fmt.Errorf("it is not what its copy %s says", copyName)
	case class != fault.Corrupt && class != fault.NoStore:
		return c, err
	}
	if e := (*fault.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	return Config{}, &fault.Error{Class: fault.Corrupt, Op: "open store", File: filepath.Join(dir, configName),
		Err:  err,
		Hint: "make it anew from its copy with: gpucr-fs repair " + dir}
}

func readConfig(st storage.Storage, dir string) (Config, error) {
	const op = "open store"
	path := filepath.Join(dir, configName)
	if st, err := os.Lstat(path); err == nil && !st.Mode().IsRegular() {
		// To open a pipe may never end.
		what := "it is not a regular file"
		if st.Mode()&os.ModeSymlink != 0 {
			what = "it is a symbolic link, of which a store has none"
		}
		return Config{}, &fault.Error{Class: fault.Corrupt, Op: op, File: path, Err: errors.New(what),
			Hint: "restore config.json from a backup"}
	}
	b, err := storage.ReadFile(st, path, maxConfig)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return Config{}, noStore(dir)
	}
	if err != nil {
		return Config{}, &fault.Error{Class: fault.OfOS(err), Op: op, Err: err}
	}
	return parseConfig(path, b)
}

func noStore(dir string) error {
	return &fault.Error{Class: fault.NoStore, Op: "open store", File: dir, Err: errors.New("no store here"),
		Hint: "make one with: gpucr-fs init " + dir}
}

// parseConfig reads the content of config.json or of its copy, the file at path.
func parseConfig(path string, b []byte) (Config, error) {
	const op = "open store"
	var c Config
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.DisallowUnknownFields()
	bad := func(why error) error {
		return &fault.Error{Class: fault.Corrupt, Op: op, File: path, Err: why,
			Hint: "restore config.json from a backup; all stores made with the same options differ in id and created " +
				"only"}
	}
	if err := dec.Decode(&c); err != nil {
		return Config{}, bad(err)
	}
	if c.Format > encryptedFormat {
		return Config{}, &fault.Error{Class: fault.Unsupported, Op: op, File: path,
			Err: fmt.Errorf("format %d is not known to this version", c.Format), Hint: "use a later gpucr-fs"}
	}
	if id, err := hex.DecodeString(c.ID); err != nil || len(id) != 16 || c.Format < 1 {
		return Config{}, bad(fmt.Errorf("format %d, id %q", c.Format, c.ID))
	}
	if err := c.Chunk.Validate(); err != nil {
		return Config{}, bad(err)
	}
	if want := map[bool]string{true: encryption}[c.Format == encryptedFormat]; c.Encryption != want {
		return Config{}, bad(fmt.Errorf("format %d, encryption %q", c.Format, c.Encryption))
	}
	if err := c.Compression.validate(false); err != nil || c.PackSize <= 0 || c.PackSize > pack.MaxSize {
		return Config{}, bad(fmt.Errorf("compression %q, pack size %d", c.Compression, c.PackSize))
	}
	return c, nil
}

func (c Config) identity() (id [16]byte) {
	b, _ := hex.DecodeString(c.ID) // LoadConfig has checked it
	copy(id[:], b)
	return id
}

// daemonMark ends the name of a daemon in the locks that it holds.
const daemonMark = " daemon)"

// Holder names this process in the locks that it holds.
func Holder(daemon bool) string {
	s := fmt.Sprintf("process %d (%s)", os.Getpid(), filepath.Base(os.Args[0]))
	if daemon {
		s = strings.TrimSuffix(s, ")") + daemonMark
	}
	return s
}

// ErrDaemonHolds: it is a daemon that holds the store. Where it does not listen, it is just starting or ending.
var ErrDaemonHolds = errors.New("held by a daemon")

// byDaemon is a lock that a daemon holds.
type byDaemon struct{ *storage.Locked }

func (byDaemon) Is(target error) bool { return target == ErrDaemonHolds }
func (b byDaemon) Unwrap() error      { return b.Locked }

// HeldBy is the error of class InUse for a store whose lock another process holds. It is ErrDaemonHolds where that one
// says that it is a daemon.
func HeldBy(dir string, held *storage.Locked) error {
	e := &fault.Error{Class: fault.InUse, Op: "open store", File: dir, Err: held,
		Hint: "wait for it to end, or unmount: gpucr-fs umount"}
	if strings.HasSuffix(held.Holder, daemonMark) {
		e.Err = byDaemon{held}
	}
	return e
}

// IsHeld tells whether a process has the store at dir open for writing.
func IsHeld(dir string) bool {
	l, err := storage.Disk{}.LockShared(filepath.Join(dir, lockName))
	if err == nil {
		l.Close()
	}
	var held *storage.Locked
	return errors.As(err, &held)
}

// lockStore takes the store for this process. It waits a moment for a holder that is just closing.
func lockStore(ctx context.Context, dir string, o *Options) (io.Closer, error) {
	for deadline := time.Now().Add(200 * time.Millisecond); ; {
		l, err := o.Storage.Lock(filepath.Join(dir, lockName), Holder(o.Daemon))
		var held *storage.Locked
		switch {
		case err == nil:
			return l, nil
		case !errors.As(err, &held):
			e := &fault.Error{Class: fault.OfOS(err), Op: "open store", Err: err}
			if e.Class == fault.ReadOnly || errors.Is(err, os.ErrPermission) {
				e.Class, e.Hint = fault.ReadOnly, fault.ReadOnlyHint
			}
			return nil, e
		case time.Now().After(deadline) || ctx.Err() != nil:
			return nil, HeldBy(dir, held)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
