package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// world is one run of the simulation: a bucket, and actors that take turns at each request. Its seed decides all.
type world struct {
	rng    *rand.Rand
	mem    *memory.Bucket
	cat    *Catalog
	actors []*actor
	cur    *actor // whose turn it is; nil while the world itself makes requests
	step   int
	nonces int
	late   []memory.Call // requests without an answer that will happen later, or never

	style  int // how turns are given
	faults int // requests of 1,000 that go wrong
	deaths int // turns of 1,000 in which somebody crashes
	travel int // turns that a late request takes, on average

	packs    map[string][]byte // all that lie in the bucket
	needed   map[string]int    // by checkpoints that stand
	standing map[string]stands // by name
	sealed   map[string]bool   // nonces of all that were ever sealed
	kept     map[string]bool   // by nonce and pack: those that were ever kept for the readers of a checkpoint
	index    map[int][]Pack    // what machines remember of packs, by content; never cleared

	wrong string
	trace *[]string
}

type stands struct {
	Record
	since int // step
}

type actor struct {
	name    string
	run     func(*actor)
	next    func() (struct{}, bool)
	stop    func()
	yield   func(struct{}) bool
	call    memory.Call // what it asks for next
	dead    bool
	frozen  int // turns to leave it out
	prio    int
	nonce   string // of the last draft it began, for when it is started anew
	drafted string // its name
	lives   int
}

var (
	errDead = errors.New("the actor crashed")
	errLost = &bucket.Error{Class: bucket.Transient, Err: errors.New("no answer")}
)

func newWorld(seed uint64, omit omitted, trace *[]string) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), packs: map[string][]byte{}, needed: map[string]int{},
		standing: map[string]stands{}, sealed: map[string]bool{}, kept: map[string]bool{},
		index: map[int][]Pack{}, trace: trace,
	}
	w.style = w.rng.IntN(4)
	w.faults = []int{0, 10, 80}[w.rng.IntN(3)]
	w.deaths = []int{0, 3, 10}[w.rng.IntN(3)]
	w.travel = []int{8, 60}[w.rng.IntN(2)]
	w.mem = memory.New(memory.Hooks{Before: w.before, After: w.after})
	w.cat = New(w.mem, Options{
		ConditionalDelete: w.rng.IntN(4) > 0, Attempts: 1 + w.rng.IntN(3), Nonce: w.nonce,
		Wait: func(context.Context, int) error {
			if w.cur != nil && w.cur.dead {
				return errDead
			}
			return nil
		},
	})
	w.cat.omit = omit
	return w
}

func (w *world) nonce() string {
	w.nonces++
	return fmt.Sprintf("%032x", w.nonces)
}

func (w *world) log(format string, args ...any) {
	if w.trace != nil {
		*w.trace = append(*w.trace, fmt.Sprintf("%4d ", w.step)+fmt.Sprintf(format, args...))
	}
}

func (w *world) fail(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
		w.log("WRONG: %s", w.wrong)
	}
}

// before makes each request a turn of its own, and decides what becomes of it.
func (w *world) before(c memory.Call) (bool, error) {
	a := w.cur
	if a == nil {
		return true, nil
	}
	a.call = c
	if a.dead || !a.yield(struct{}{}) {
		a.dead = true
		return false, errDead
	}
	// A root that is made late is the one write that can find its condition met again.
	if w.faults > 0 && makes(c) && w.rng.IntN(6) == 0 {
		w.putOff(a)
		return false, errLost
	}
	if w.rng.IntN(1000) >= w.faults {
		w.log("%s: %s %s", a.name, c.Op, c.Key)
		return true, nil
	}
	switch w.rng.IntN(3) {
	case 0:
		w.log("%s: %s %s, and the answer is lost", a.name, c.Op, c.Key)
		return true, errLost
	case 1:
		w.putOff(a)
	default:
		w.log("%s: %s %s fails", a.name, c.Op, c.Key)
	}
	return false, errLost
}

// putOff lets what an actor asks for happen later.
func (w *world) putOff(a *actor) {
	if a.call.Op == "put" || a.call.Op == "delete" {
		w.log("%s: %s %s is on its way", a.name, a.call.Op, a.call.Key)
		w.late = append(w.late, a.call)
	}
}

// after holds the invariants at each change.
func (w *world) after(c memory.Call, _ []byte) {
	dir, name, _ := strings.Cut(c.Key, "/")
	switch dir + "/" {
	case packDir:
		if c.Op == "put" {
			if old, ok := w.packs[name]; ok && !bytes.Equal(old, c.Content) {
				w.fail("pack %s was written over", name)
			}
			w.packs[name] = c.Content
			return
		}
		if w.needed[name] > 0 {
			w.fail("pack %s was deleted, and a checkpoint that stands needs it", name)
		}
		delete(w.packs, name)
	case rootDir:
		w.rooted(name, c)
	case removedDir:
		if r, err := decode(c.Content); c.Op == "put" && err == nil {
			for _, p := range r.Packs {
				w.kept[r.Nonce+p.ID] = true
			}
		}
	}
}

func (w *world) rooted(name string, c memory.Call) {
	old, stood := w.standing[name]
	if c.Op == "delete" {
		if stood {
			w.fail("the root of %s was deleted while it stood", name)
		}
		return
	}
	r, err := decode(c.Content)
	if err != nil {
		w.fail("a root was written that cannot be read: %v", err)
		return
	}
	same := r.State == Sealed && r.Nonce == old.Nonce
	if stood && !same && r.State != Void {
		w.fail("%s stands, and its root became %s", name, r.State)
	}
	for _, p := range needs(old.Record) {
		w.needed[p.ID]--
		if (!same || !slices.Contains(needs(r), p)) && !w.kept[old.Nonce+p.ID] {
			w.fail("%s needs pack %s no more, and nothing keeps that for its readers", name, p.ID)
		}
	}
	delete(w.standing, name)
	if r.State != Sealed {
		return
	}
	for i, p := range needs(r) {
		w.needed[p.ID]++
		if got, ok := w.packs[p.ID]; !ok || !bytes.Equal(got, content(int(r.Meta[i]))) {
			w.fail("%s was sealed without its pack %s", name, p.ID)
		}
	}
	since := w.step
	if same {
		since = old.since
	}
	w.standing[name] = stands{r, since}
	w.sealed[r.Nonce] = true
}

// needs gives the packs with the content of a checkpoint, the things that its meta names. A root may list others before
// them, while it is given these.
func needs(r Record) []Pack { return r.Packs[len(r.Packs)-len(r.Meta):] }

// content gives the bytes that the machines have of a thing to be stored.
func content(n int) []byte { return bytes.Repeat([]byte{byte('a' + n)}, n+1) }

// start adds an actor.
func (w *world) start(name string, run func(*actor)) {
	w.actors = append(w.actors, &actor{name: name, run: run, prio: w.rng.IntN(1000)})
}

// revive gives an actor a (new) life.
func (w *world) revive(a *actor) {
	a.dead, a.lives = false, a.lives+1
	a.next, a.stop = iter.Pull(func(yield func(struct{}) bool) {
		a.yield = yield
		a.run(a)
	})
}

// play gives turns until all actors have ended, and then lets all that is still on its way happen or not.
func (w *world) play() {
	live := slices.Clone(w.actors)
	for _, a := range live {
		w.revive(a)
	}
	const enough = 5000
	for ; len(live) > 0 && w.wrong == "" && w.step < enough; w.step++ {
		if len(w.late) > 0 && w.rng.IntN(w.travel) == 0 {
			if i := w.rng.IntN(len(w.late)); !w.idle(w.late[i]) {
				w.arrive(i, true)
			}
			continue
		}
		a := w.choose(live)
		w.cur = a
		if w.rng.IntN(1000) < w.deaths {
			w.crash(a)
		} else if _, more := a.next(); more {
			w.cur = nil
			continue
		}
		w.cur = nil
		if a.dead && a.lives < 3 && w.rng.IntN(2) == 0 {
			w.log("%s begins anew", a.name)
			w.revive(a)
			continue
		}
		live = slices.DeleteFunc(live, func(b *actor) bool { return a == b })
	}
	for _, a := range live {
		w.cur = a
		w.crash(a)
	}
	w.cur = nil
	if w.step >= enough {
		w.fail("the actors do not come to an end")
	}
	for len(w.late) > 0 {
		w.arrive(w.rng.IntN(len(w.late)), w.rng.IntN(2) == 0)
	}
}

// crash ends an actor at the request it is about to make, which may still happen.
func (w *world) crash(a *actor) {
	w.log("%s crashes", a.name)
	if a.yield != nil && w.rng.IntN(2) == 0 {
		w.putOff(a)
	}
	a.dead, a.call = true, memory.Call{}
	a.stop()
}

// idle tells that a late request is to wait on, as it would do nothing now and may do harm later: a root that is to be
// made where there is one.
func (w *world) idle(c memory.Call) bool {
	return makes(c) && w.mem.Content(c.Key) != nil && w.rng.IntN(8) > 0
}

// makes and changes tell what a request does to a root.
func makes(c memory.Call) bool {
	return c.Op == "put" && strings.HasPrefix(c.Key, rootDir) && c.Cond == bucket.IfAbsent
}

func changes(c memory.Call) bool {
	return c.Op == "put" && strings.HasPrefix(c.Key, rootDir) && c.Cond != bucket.IfAbsent
}

func (w *world) arrive(i int, happens bool) {
	c := w.late[i]
	w.late = slices.Delete(w.late, i, i+1)
	if happens {
		w.log("late: %s %s: %v", c.Op, c.Key, w.mem.Apply(c))
	}
}

// choose gives the next turn: to anyone, mostly to the one who had the last, to the one who comes first in an order
// that changes now and then, or to collectors while a writer is about to change a root. An actor may be left out for
// long.
func (w *world) choose(live []*actor) *actor {
	a := live[w.rng.IntN(len(live))]
	switch w.style {
	case 1:
		if slices.Contains(live, w.actors[0]) && w.rng.IntN(8) > 0 {
			a = w.actors[0]
		}
	case 2:
		for _, b := range live {
			if b.prio > a.prio {
				a = b
			}
		}
		if w.rng.IntN(20) == 0 {
			a.prio = w.rng.IntN(1000) - 500
		}
	case 3:
		first := w.actors[0]
		for _, b := range live {
			if b == first && !changes(b.call) || changes(first.call) && strings.HasPrefix(b.name, "collector") {
				return b
			}
		}
	}
	if w.style == 1 { // the last one stands first
		i := slices.Index(w.actors, a)
		w.actors[0], w.actors[i] = w.actors[i], w.actors[0]
	}
	pause := 60
	switch {
	case a.call.Op == "delete": // what has been decided some time ago is done when much has changed
		pause = 2
	case a.call.Op == "list" && a.call.Key == tombDir: // a root lists packs that have not been looked for
		pause = 5
	}
	if w.rng.IntN(pause) == 0 {
		a.frozen = w.rng.IntN(200)
	}
	if a.frozen > 0 && len(live) > 1 {
		a.frozen--
		for _, b := range live {
			if b.frozen == 0 {
				return b
			}
		}
	}
	return a
}

// settle lets a collector run twice when all is quiet, and looks at what is left.
func (w *world) settle() {
	if w.wrong != "" {
		return
	}
	for name := range w.standing {
		w.trim(name)
	}
	var now time.Duration
	g := w.cat.Collector(Patience{Foreign: 1, Now: func() time.Duration { now++; return now }})
	for range 2 {
		if _, err := g.Collect(context.Background()); err != nil {
			w.fail("collecting when all is quiet: %v", err)
		}
	}
	for _, key := range w.mem.Keys() {
		dir, name, _ := strings.Cut(key, "/")
		switch {
		case dir+"/" == packDir && w.needed[name] > 0:
		case dir+"/" == rootDir && w.standing[name].Name == name:
		case dir+"/" == rootDir && !w.cat.o.ConditionalDelete && isVoid(w.mem.Content(key)):
		default:
			w.fail("%s is left", key)
		}
	}
	for name := range w.standing {
		w.read(name)
	}
}

func isVoid(record []byte) bool { return bytes.Contains(record, []byte("\nstate void\n")) }

// read reads a checkpoint as a restore does. One that is given other packs meanwhile it finds anew.
func (w *world) read(name string) {
	for w.readOnce(name) {
	}
}

func (w *world) readOnce(name string) (again bool) {
	ctx, began := context.Background(), w.step
	k, err := w.cat.Find(ctx, name)
	if errors.Is(err, ErrNotFound) {
		if s, ok := w.standing[name]; ok && s.since < began {
			w.fail("%s stood all the time and was not found", name)
		}
		return false
	}
	if err != nil {
		w.failure("find "+name, err)
		return false
	}
	for i := range k.Meta {
		_, err := w.fetch(k, i)
		switch {
		case errors.Is(err, ErrMoved):
			return true
		case errors.Is(err, ErrRemoved) && w.standing[name].Nonce == k.Nonce:
			w.fail("%s stands and was told to be removed", name)
		case errors.Is(err, ErrRemoved):
			return false
		case err != nil:
			w.failure("read "+name, err)
		}
	}
	return false
}

// fetch reads the thing with this number of a checkpoint.
func (w *world) fetch(k *Checkpoint, i int) ([]byte, error) {
	p, want := needs(k.Record)[i], content(int(k.Meta[i]))
	got := make([]byte, len(want)+1)
	n, err := k.ReadAt(context.Background(), p, got, 0)
	if err == nil && !bytes.Equal(got[:n], want) {
		w.fail("pack %s of %s has wrong bytes", p.ID, k.Name)
	}
	return want, err
}

// failure takes an error that an actor cannot do anything about. Those that only mean to try again later are none.
func (w *world) failure(what string, err error) {
	switch {
	case errors.Is(err, errDead), errors.Is(err, ErrTaken), errors.Is(err, ErrInUse), errors.Is(err, ErrExists),
		errors.Is(err, ErrNotFound), errors.Is(err, ErrMoved), bucket.ClassOf(err) == bucket.Transient:
		w.log("%s: %v", what, err)
	default:
		w.fail("%s: %v", what, err)
	}
}
