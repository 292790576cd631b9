package page

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// How often the books are looked at and counted.
const (
	namesEvery  = time.Second // or this many times as long as it took:
	namesShare  = 20
	countLimit  = 10 * time.Minute
	countShare  = 10              // between two counts passes this many times as long as the last took,
	countPause  = 2 * time.Second // and at least this,
	countedAnew = 5 * time.Minute // and at most this, should gc or optimize have changed what no name tells
	forgetAfter = 5 * time.Minute // without a look
)

// Row is a checkpoint as the list has it.
type Row struct {
	index.Info
	Counted bool `json:"counted"` // Unique, Shared, Stored and the bytes held are known
	// Held are the bytes in packs for which the checkpoint stands in the map; Held.Only are free when it goes.
	Held struct {
		Only int64 `json:"only"`
		Two  int64 `json:"two"`
		Few  int64 `json:"few"`
		Many int64 `json:"many"`
	} `json:"held"`
	search string
}

func (r *Row) held() int64 { return r.Held.Only + r.Held.Two + r.Held.Few + r.Held.Many }

// Books are all checkpoints as they were at a moment. They never change.
type Books struct {
	Rows []Row
	// Usage is the last count; nil before the first one.
	Usage *service.UsageResult
	// Counting tells that a count is under way, Stale that Usage is of an earlier state of the store.
	Counting, Stale bool
	CountedAt       time.Time
	Problem         string // why the store could not be counted
}

// keeper keeps the books of a store.
type keeper struct {
	env func() *service.Env
	log *slog.Logger

	work   context.Context // of counts
	cancel context.CancelFunc
	wg     sync.WaitGroup
	seed   maphash.Seed
	look   chan struct{} // holds a token while nobody reads the names

	mu        sync.Mutex
	names     []index.Info
	namesAt   time.Time
	namesTook time.Duration
	key       uint64 // of names, see keys
	lookKey   uint64
	usage     *service.UsageResult
	usageKey  uint64
	counted   time.Time     // when the last count ended
	took      time.Duration // what it took
	counting  bool
	problem   string
	made      *Books // of names and usage; nil when one has changed
	looked    time.Time
	forget    *time.Timer
	closed    bool
}

func newKeeper(env func() *service.Env, log *slog.Logger) *keeper {
	k := &keeper{env: env, log: log, seed: maphash.MakeSeed(), look: make(chan struct{}, 1)}
	k.work, k.cancel = context.WithCancel(context.Background())
	k.look <- struct{}{}
	return k
}

// books gives the books as they are, and begins a count if one is due.
func (k *keeper) books(ctx context.Context) (*Books, error) {
	if err := k.refresh(ctx); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looked = time.Now()
	if k.forget == nil && !k.closed {
		k.forget = time.AfterFunc(forgetAfter, k.forgetAll)
	}
	due := k.usage == nil || k.usageKey != k.key || time.Since(k.counted) > countedAnew
	if due && !k.counting && !k.closed && time.Since(k.counted) > max(countPause, countShare*k.took) {
		k.counting = true
		k.wg.Go(k.count)
	}
	if k.made == nil {
		k.made = k.make()
	}
	b := *k.made
	b.Counting, b.Stale, b.CountedAt, b.Problem = k.counting, k.usageKey != k.key, k.counted, k.problem
	return &b, nil
}

// refresh reads the names anew when they are old. One reads, others wait.
func (k *keeper) refresh(ctx context.Context) error {
	select {
	case <-k.look:
		defer func() { k.look <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	k.mu.Lock()
	fresh := k.names != nil && time.Since(k.namesAt) < max(namesEvery, namesShare*k.namesTook)
	k.mu.Unlock()
	if fresh {
		return nil
	}
	begin := time.Now()
	names, err := k.env().Store.Names(ctx)
	if err != nil {
		return err
	}
	if names == nil {
		names = []index.Info{}
	}
	key, look := k.keys(names)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.namesAt, k.namesTook = time.Now(), time.Since(begin)
	if k.names == nil || look != k.lookKey {
		k.names, k.key, k.lookKey, k.made = names, key, look, nil
	}
	return nil
}

// keys tells states of a store apart: by which checkpoints there are, which says when to count, and by all that is
// shown of them.
func (k *keeper) keys(names []index.Info) (which, all uint64) {
	var a, b maphash.Hash
	a.SetSeed(k.seed)
	b.SetSeed(k.seed)
	for _, i := range names {
		a.WriteString(i.ID + string(i.State))
		b.WriteString(i.ID + string(i.State) + i.Name)
		for _, s := range slices.Concat(i.Tags, i.Children) {
			b.WriteString("\x00" + s)
		}
		for _, l := range slices.Sorted(maps.Keys(i.Labels)) {
			b.WriteString("\x00" + l + "=" + i.Labels[l])
		}
	}
	return a.Sum64(), b.Sum64()
}

// count goes through the store.
func (k *keeper) count() {
	ctx, cancel := context.WithTimeout(k.work, countLimit)
	defer cancel()
	k.mu.Lock()
	key := k.key
	k.mu.Unlock()
	env := *k.env()
	env.Remote = nil // its account asks the bucket
	begin := time.Now()
	usage, err := service.Usage.Do(ctx, here{&env}, service.UsageRequest{}, wire.Streams{})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counting, k.counted, k.took = false, time.Now(), time.Since(begin)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			k.problem = err.Error()
		}
		return
	}
	k.usage, k.usageKey, k.problem, k.made = &usage, key, "", nil
}

// make joins names and usage. mu is held.
func (k *keeper) make() *Books {
	b := &Books{Rows: make([]Row, len(k.names)), Usage: k.usage}
	at := map[string]int{}
	if k.usage != nil {
		for i := range k.usage.Checkpoints {
			at[k.usage.Checkpoints[i].ID] = i
		}
	}
	for i, n := range k.names {
		r := &b.Rows[i]
		r.Info = n
		if j, ok := at[n.ID]; ok && k.usage.Checkpoints[j].State == n.State {
			c := k.usage.Checkpoints[j]
			r.Unique, r.Shared, r.Stored, r.Damage, r.Counted = c.Unique, c.Shared, c.Stored, c.Damage, c.Damage == ""
			r.Held = k.usage.Held[j]
		}
		r.search = strings.ToLower(strings.Join([]string{n.Name, n.ID, string(n.State), strings.Join(n.Tags, " "),
			n.Labels["command"], n.Labels["host"], n.Labels["user"]}, "\x00"))
	}
	return b
}

// forgetAll gives the memory back when nobody has looked for a while.
func (k *keeper) forgetAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if left := forgetAfter - time.Since(k.looked); left > 0 && !k.closed {
		k.forget.Reset(left)
		return
	}
	k.names, k.usage, k.made, k.forget = nil, nil, nil, nil
}

func (k *keeper) close() {
	k.mu.Lock()
	k.closed = true
	if k.forget != nil {
		k.forget.Stop()
	}
	k.mu.Unlock()
	k.cancel()
	k.wg.Wait()
}

// orders are the columns by which the list can be sorted.
var orders = map[string]func(a, b *Row) int{
	"name":    func(a, b *Row) int { return strings.Compare(a.Name, b.Name) },
	"created": func(a, b *Row) int { return a.Created.Compare(b.Created) },
	"logical": func(a, b *Row) int { return cmp.Compare(a.Logical, b.Logical) },
	"unique":  func(a, b *Row) int { return cmp.Compare(a.Unique, b.Unique) },
	"shared":  func(a, b *Row) int { return cmp.Compare(a.Shared, b.Shared) },
	"stored":  func(a, b *Row) int { return cmp.Compare(a.Stored, b.Stored) },
	"frees":   func(a, b *Row) int { return cmp.Compare(a.Held.Only, b.Held.Only) },
}

// here is the way to the store that this process has open.
type here struct{ env *service.Env }

func (h here) Here(st wire.Streams) *service.Env {
	env := *h.env
	env.Streams = st
	return &env
}

// Call is for others.
func (h here) Call(context.Context, string, any, any, wire.Streams) error {
	return errors.New("the store is open here")
}
