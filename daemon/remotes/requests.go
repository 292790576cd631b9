package remotes

import (
	"context"
	"encoding/json"
	"path/filepath"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// requestsName is the file in a store that counts its requests to the remote store.
const requestsName = "remote-requests.json"

// Requests are the requests that a store has made to its remote store.
type Requests struct {
	Since time.Time                     `json:"since"`
	Kinds map[bucket.Kind]bucket.Counts `json:"kinds"`
}

// PerMonth gives how many requests of each kind there were in 30 days at the rate so far. Less than an hour counts as
// one hour, because a rate over seconds says nothing.
func (r Requests) PerMonth(now time.Time) map[bucket.Kind]float64 {
	over := max(now.Sub(r.Since), time.Hour)
	out := map[bucket.Kind]float64{}
	for k, c := range r.Kinds {
		out[k] = float64(c.Requests) * float64(30*24*time.Hour) / float64(over)
	}
	return out
}

// Account is where the bytes of a store with a remote store are, beside its own.
type Account struct {
	Address string `json:"address"`
	Cache   int64  `json:"cache"`       // bytes of the store's disk that hold what was fetched
	Limit   int64  `json:"cache_limit"` // bytes that they may be
	// Bucket is what the remote store holds for all machines; nil where it cannot be asked, as Problem tells.
	Bucket   *remote.Contents        `json:"bucket,omitempty"`
	Problem  string                  `json:"problem,omitempty"`
	Requests Requests                `json:"requests"`
	PerMonth map[bucket.Kind]float64 `json:"requests_per_month"` // at the rate so far
}

// accountTime is how long Account waits for a bucket that does not answer.
const accountTime = 30 * time.Second

// Account accounts for the remote store.
func (r *Remote) Account(ctx context.Context) *Account {
	a := &Account{Address: r.file.Address, Cache: r.cache.Used(), Limit: r.file.Cache}
	ctx, cancel := context.WithTimeout(ctx, accountTime)
	defer cancel()
	s, err := r.Store(ctx)
	if err == nil {
		var c remote.Contents
		if c, err = s.Contents(ctx); err == nil {
			a.Bucket = &c
		}
	}
	if err != nil {
		a.Problem = err.Error()
	}
	a.Requests = r.requests.all()
	a.PerMonth = a.Requests.PerMonth(time.Now())
	return a
}

// requests counts, and keeps the counts in a store. A daemon that is killed loses those since its last upload.
type requests struct {
	path  string
	keep  bool // the store can be written
	meter bucket.Meter

	mu     sync.Mutex
	before Requests // of earlier processes
}

func openRequests(dir string, keep bool) *requests {
	r := &requests{path: filepath.Join(dir, requestsName), keep: keep}
	text, err := storage.ReadFile(storage.Disk{}, r.path, maxFile)
	if err != nil || json.Unmarshal(text, &r.before) != nil || r.before.Since.IsZero() {
		r.before = Requests{Since: time.Now().UTC().Truncate(time.Second)}
	}
	return r
}

func (r *requests) all() Requests {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := Requests{Since: r.before.Since, Kinds: r.meter.Counts()}
	for k, c := range r.before.Kinds {
		sum.Kinds[k] = sum.Kinds[k].Plus(c)
	}
	return sum
}

func (r *requests) save() error {
	if !r.keep {
		return nil
	}
	sum := r.all()
	text, err := json.Marshal(sum)
	if err != nil {
		return err
	}
	return storage.WriteFile(storage.Disk{}, r.path, text)
}

// Requests gives all requests of this store to its remote store, those of earlier processes included.
func (r *Remote) Requests() Requests { return r.requests.all() }

// Counted gives the requests of this process.
func (r *Remote) Counted() map[bucket.Kind]bucket.Counts { return r.requests.meter.Counts() }

// asked says whether this process has made a request.
func (r *Remote) asked() bool {
	for _, c := range r.Counted() {
		if c.Requests > 0 {
			return true
		}
	}
	return false
}

// SaveRequests keeps the counts in the store, which has to be open. It does nothing where there is no remote store, or
// where it was not asked for anything.
func (r *Remote) SaveRequests() {
	if r == nil || !r.asked() {
		return
	}
	if err := r.requests.save(); err != nil {
		r.log.Warn("how many requests were made cannot be noted", "file", r.requests.path, "err", err)
	}
}
