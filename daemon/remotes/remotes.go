// Package remotes is the way from a store to its remote store: the file remote.json in the store's folder says which
// bucket that is, the folder cache holds what was fetched of it.
//
// Nothing is asked of the bucket before it is needed: a store whose bucket is away can be opened, and what lies in its
// own packs be read.
package remotes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/s3"
	"github.com/gpucr/gpucr-fs/index/remote/config"
	"github.com/gpucr/gpucr-fs/index/remote/nodecache"
	"github.com/gpucr/gpucr-fs/index/remote/object"
	"github.com/gpucr/gpucr-fs/index/storage"
)

const (
	// FileName is the file in a store that says where its remote store is.
	FileName = "remote.json"
	// maxFile bounds FileName in bytes.
	maxFile = 64 << 10
	// defaultFloor is what the node's cache leaves free on the store's disk, unless the store's options say otherwise.
	defaultFloor = 1 << 30
	// DefaultCache is how many bytes of disk the node's cache may take where nobody says otherwise.
	DefaultCache = 32 << 30
)

// File is what FileName holds. There are no secrets in it.
type File struct {
	Address string        `json:"address"`    // s3://…
	Cache   int64         `json:"cache_disk"` // bytes of disk that the node's cache may take
	Config  config.Config `json:"config"`     // of the remote store when this store was made, without its keys
	// Encrypted says that the remote store is: the store then has the same key.
	Encrypted bool `json:"encrypted,omitempty"`
}

// Remote is the remote store of a store. It is safe for concurrent use.
type Remote struct {
	dir   string
	file  File
	log   *slog.Logger
	cache *nodecache.Cache
	wait  time.Duration                // that a reader waits for payload
	coder atomic.Pointer[cipher.Coder] // once the store is open, if it is encrypted

	ledger   *ledger
	requests *requests

	opening    chan struct{} // held by the one who opens it
	collecting sync.Mutex    // one collection at a time
	follower   follower
	pulls      atomic.Int64 // under way

	mu       sync.Mutex
	open     *remote.Store // nil before it was needed
	s3       []*s3.Bucket
	failed   error // of the last attempt to open it
	failedAt time.Time
}

const (
	// DefaultWait is how long a reader waits for payload where nobody says otherwise.
	DefaultWait = time.Minute
	// failTime is how long a failed attempt to open the remote store counts for others.
	failTime = 5 * time.Second
)

// Make makes a remote store at an address, or joins the one that is there, and gives what the file of a store is to
// hold, and the wrapped key of an encrypted one.
func Make(
	ctx context.Context, address string, cache int64, params index.Params, k Keys, log *slog.Logger,
) (f File, ring *keyring.Ring, fresh bool, err error) {
	b, err := dial(address)
	if err != nil {
		return File{}, nil, false, err
	}
	defer b.Close()
	s, fresh, err := remote.Make(ctx, b, params, remote.Options{Logger: log, Ring: k.Ring})
	if err == nil && !fresh {
		err = k.fit(ctx, address, s.Config().Ring)
	}
	if err != nil {
		return File{}, nil, false, err
	}
	f, ring = fileOf(address, cache, s.Config())
	return f, ring, fresh, nil
}

// Join is Make for a remote store that must be there: for a node that was lost. Class NoStore where there is none.
func Join(
	ctx context.Context, address string, cache int64, k Keys, log *slog.Logger,
) (f File, ring *keyring.Ring, err error) {
	b, err := dial(address)
	if err != nil {
		return File{}, nil, err
	}
	defer b.Close()
	s, err := remote.Open(ctx, b, remote.Options{Logger: log})
	if err == nil {
		err = k.fit(ctx, address, s.Config().Ring)
	}
	if err != nil {
		return File{}, nil, err
	}
	f, ring = fileOf(address, cache, s.Config())
	return f, ring, nil
}

func dial(address string) (*s3.Bucket, error) {
	a, err := s3.Parse(address)
	if err != nil {
		return nil, &index.Error{Class: index.Invalid, Op: "remote store", Hint: bucket.HintOf(err), Err: err}
	}
	b, err := s3.Open(a, s3.Options{})
	if err != nil {
		return nil, &index.Error{Class: index.Invalid, Op: "remote store", Hint: bucket.HintOf(err), Err: err}
	}
	return b, nil
}

// Of gives the remote store of the store at dir, nil where it has none, and sets up o to read from it. Close ends it,
// after the store.
func Of(dir string, o *index.Options, log *slog.Logger) (*Remote, error) {
	const op = "open store"
	if err := index.CheckLayout(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, FileName)
	text, err := storage.ReadFile(storage.Disk{}, path, maxFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &index.Error{Op: op, File: path, Err: err}
	}
	r := &Remote{dir: dir, log: log, wait: cmp.Or(o.DistantTimeout, DefaultWait),
		opening: make(chan struct{}, 1), ledger: openLedger(dir, log),
		requests: openRequests(dir, !o.ReadOnly)}
	if err := json.Unmarshal(text, &r.file); err != nil {
		return nil, &index.Error{Class: index.Corrupt, Op: op, File: path, Err: err,
			Hint: "write it anew: " + `{"address": "s3://…", "cache_disk": BYTES}`}
	}
	floor := o.FreeFloor
	if floor == 0 {
		floor = defaultFloor
	}
	c := nodecache.Options{Dir: filepath.Join(dir, index.CacheFolder), Limit: r.file.Cache, Floor: floor,
		Storage: storage.Disk{}, Source: r, Ahead: r, Logger: log,
		Sealed: r.file.Encrypted}
	if o.ReadOnly {
		c.Limit = 0
	}
	r.cache, err = nodecache.Open(c)
	if err != nil { // as on a disk that is mounted read-only
		log.Warn("what is fetched of the remote store cannot be kept", "folder", c.Dir, "err", err)
		c.Limit = 0
		r.cache, err = nodecache.Open(c)
	}
	if err != nil {
		return nil, &index.Error{Op: op, File: c.Dir, Err: err}
	}
	o.Distant, o.Unlocked = r.cache, r.coder.Store
	return r, nil
}

// Close ends the connections. It writes nothing in the store, whose lock is another process's by then.
func (r *Remote) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.s3 {
		b.Close()
	}
	r.open, r.s3 = nil, nil
}

// Address says where the remote store is.
func (r *Remote) Address() string { return r.file.Address }

// Store opens the remote store, once. Class Corrupt where another one is in its place.
func (r *Remote) Store(ctx context.Context) (*remote.Store, error) {
	select {
	case r.opening <- struct{}{}:
		defer func() { <-r.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	s, err := r.open, r.failed
	if time.Since(r.failedAt) > failTime {
		err = nil
	}
	r.mu.Unlock()
	if s != nil || err != nil {
		return s, err
	}
	s, b, err := r.dial(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open, r.s3 = s, b
	if r.failed = err; err != nil && ctx.Err() == nil {
		r.failedAt = time.Now()
	}
	return s, err
}

// Pull makes a checkpoint of the remote store one of the store; see [remote.Store.Pull].
func (r *Remote) Pull(ctx context.Context, n *index.Store, name, as string) (index.Info, error) {
	s, err := r.Store(ctx)
	if err != nil {
		return index.Info{}, err
	}
	r.pulls.Add(1)
	defer r.pulls.Add(-1)
	info, err := s.Pull(ctx, n, name, as)
	if err == nil {
		r.NoteStands(info.ID, name)
		r.NoteLearned(info.ID, LearnedIn(n, info.ID))
	}
	return info, err
}

// IsFrom says whether a checkpoint of the store was pulled from this remote store.
func (r *Remote) IsFrom(i index.Info) bool { return i.Bucket != "" && i.Bucket == r.file.Config.ID }

// Pulling says whether a checkpoint is being pulled. It may be in the store before the ledger says that the bucket has
// it.
func (r *Remote) Pulling() bool { return r.pulls.Load() > 0 }

// neededTime is how long Needed waits for a bucket that does not answer.
const neededTime = 20 * time.Second

// Needed gives a function that says which packs checkpoints of the remote store need; nil where that cannot be found
// out.
func (r *Remote) Needed(ctx context.Context) func(object.Name) bool {
	ctx, cancel := context.WithTimeout(ctx, neededTime)
	defer cancel()
	s, err := r.Store(ctx)
	var needed map[object.Name]bool
	if err == nil {
		needed, err = s.Needed(ctx)
	}
	if err != nil {
		r.log.Warn("what is known of the remote store stays, as it cannot be seen what is needed there", "err", err)
		return nil
	}
	return func(n object.Name) bool { return needed[n] }
}

// dial opens the remote store anew. What is read ahead has connections of its own.
func (r *Remote) dial(ctx context.Context) (*remote.Store, []*s3.Bucket, error) {
	b, err := dial(r.file.Address)
	if err != nil {
		return nil, nil, err
	}
	ahead, err := dial(r.file.Address)
	if err != nil {
		b.Close()
		return nil, nil, err
	}
	left := pushes{filepath.Join(r.dir, index.PushesFolder)}
	s, err := remote.Open(ctx, r.requests.meter.Over(b),
		remote.Options{Ahead: r.requests.meter.Over(ahead), Logger: r.log, Pushes: left, Timeout: r.wait,
			Cipher: r.coder.Load()})
	if index.ClassOf(err) == index.NoStore && r.file.Config.ID != "" {
		err = &index.Error{Class: index.NoStore, Op: "open remote store", File: r.file.Address,
			Err:  errors.New("the object config is lost, and without it there is no remote store"),
			Hint: config.PutBack}
	}
	if err == nil && (s.Config().Ring != nil) != r.file.Encrypted {
		err = &index.Error{Class: index.Corrupt, Op: "open remote store", File: r.file.Address,
			Err:  errors.New("one of it and this store is encrypted, the other is not"),
			Hint: "make a new store with: gpucr-fs init --remote"}
	}
	if err == nil && r.file.Config.ID != "" && s.Config().ID != r.file.Config.ID {
		err = &index.Error{Class: index.Corrupt, Op: "open remote store", File: r.file.Address,
			Err:  fmt.Errorf("its identity is %s, and this store was made with %s", s.Config().ID, r.file.Config.ID),
			Hint: "make a new store with: gpucr-fs init --remote"}
	}
	if err != nil {
		b.Close()
		ahead.Close()
		return nil, nil, err
	}
	return s, []*s3.Bucket{b, ahead}, nil
}

// pushes is of remote.Pushes: a folder that has a file for each push that was begun and not ended, with the nonce of
// its draft.
type pushes struct{ dir string }

// inNoName ends the name of a file that is being written. No name of a checkpoint has it in it.
const inNoName = "#"

func (p pushes) Begun(name, nonce string) error {
	if err := os.Mkdir(p.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	// Not by storage.WriteFile, whose NAME.new may be that of another checkpoint.
	path := filepath.Join(p.dir, name)
	if err := storage.WriteSynced(storage.Disk{}, path+inNoName, []byte(nonce)); err != nil {
		os.Remove(path + inNoName)
		return err
	}
	if err := os.Rename(path+inNoName, path); err != nil {
		return err
	}
	return storage.Disk{}.SyncDir(p.dir)
}

func (p pushes) Left(name string) (string, error) {
	b, err := storage.ReadFile(storage.Disk{}, filepath.Join(p.dir, name), maxFile)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

func (p pushes) Ended(name string) { os.Remove(filepath.Join(p.dir, name)) }

// openSoon gives the remote store for reading ahead, and does not wait for long.
func (r *Remote) openSoon(ctx context.Context) (*remote.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	return r.Store(ctx)
}

// ReadRange is of nodecache.Source. Somebody waits for it: a bucket that cannot be reached is tried again for r.wait.
func (r *Remote) ReadRange(ctx context.Context, name object.Name, p []byte, off int64) error {
	ctx, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	for n := 1; ; n++ {
		s, err := r.Store(ctx)
		if err == nil {
			if err = s.ReadRange(ctx, name, p, off); index.ClassOf(err) == index.NotFound {
				if ferr := r.follow(ctx); ferr != nil { // else the reader looks whether the chunk lies elsewhere
					err = fmt.Errorf("%w; %w", err, ferr)
				}
			}
			return err
		}
		if index.ClassOf(err) != index.Unreachable || bucket.Backoff(ctx, n) != nil {
			return err
		}
	}
}

// Begin is of nodecache.Ahead.
func (r *Remote) Begin(ctx context.Context) (end func(bytes int64), err error) {
	s, err := r.openSoon(ctx)
	if err != nil {
		return nil, err
	}
	return s.BeginAhead(ctx)
}

// ReadAhead is of nodecache.Ahead.
func (r *Remote) ReadAhead(ctx context.Context, name object.Name, p []byte, off int64) error {
	s, err := r.openSoon(ctx)
	if err != nil {
		return err
	}
	return s.ReadAhead(ctx, name, p, off)
}
