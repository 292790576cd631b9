package storage

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// Image is a Mem as it was at a moment, with what was synced and what was not. It costs a pointer per 4 KiB.
type Image struct{ root *memDir }

// Snapshot gives the image of the present moment.
func (m *Mem) Snapshot() *Image {
	m.mu.Lock()
	defer m.mu.Unlock()
	files := map[*memFile]*memFile{}
	dirs := map[*memDir]*memDir{}
	return &Image{copyDir(m.root, files, dirs)}
}

func copyDir(d *memDir, files map[*memFile]*memFile, dirs map[*memDir]*memDir) *memDir {
	if done := dirs[d]; done != nil {
		return done
	}
	out := newDir()
	dirs[d] = out
	node := func(n any) any {
		switch n := n.(type) {
		case *memDir:
			return copyDir(n, files, dirs)
		case *memFile:
			if files[n] == nil {
				files[n] = &memFile{now: n.now.clone(), durable: n.durable.clone(), since: slices.Clip(n.since)}
			}
			return files[n]
		}
		return nil
	}
	names := func(in map[string]any) map[string]any {
		out := make(map[string]any, len(in))
		for name, n := range in {
			out[name] = node(n)
		}
		return out
	}
	out.now, out.durable = names(d.now), names(d.durable)
	for _, c := range d.since {
		out.since = append(out.since, names(c))
	}
	return out
}

// Now gives the file system as the image's running process saw it, nothing lost, as after a kill of the process.
func (i *Image) Now() *Mem {
	m := &Mem{root: copyDir(i.root, map[*memFile]*memFile{}, map[*memDir]*memDir{}), locks: map[string]*memLock{}}
	return m
}

// Crash gives one of the states in which a power cut at that moment may leave the files; seed chooses it. Everything
// there is durable.
func (i *Image) Crash(seed uint64) *Mem {
	r := rand.New(rand.NewPCG(seed, 1))
	done := map[*memFile]*memFile{}
	var dir func(d *memDir) *memDir
	dir = func(d *memDir) *memDir {
		names := maps.Clone(d.durable)
		for _, c := range lot(r, len(d.since)) {
			if c.fate != lost { // a change of names is never torn
				d.since[c.i].apply(names)
			}
		}
		out := newDir()
		for _, name := range slices.Sorted(maps.Keys(names)) {
			switch n := names[name].(type) {
			case *memDir:
				out.now[name] = dir(n)
			case *memFile:
				f := done[n]
				if f == nil {
					f = &memFile{durable: n.durable.clone()}
					survive(&f.durable, n.since, r)
					f.now = f.durable.clone()
					done[n] = f
				}
				out.now[name] = f
			}
		}
		out.durable = maps.Clone(out.now)
		return out
	}
	return &Mem{root: dir(i.root), locks: map[string]*memLock{}}
}

// fate is what becomes of a change that was not synced.
type fate int

const (
	lost fate = iota
	torn
	whole
)

type drawn struct {
	i    int
	fate fate
}

// lot draws the fates of n changes. Often they have one in common, or all is lost from one on: those are the likely
// crashes.
func lot(r *rand.Rand, n int) []drawn {
	out := make([]drawn, n)
	if n == 0 {
		return out
	}
	way, cut := r.IntN(5), r.IntN(n+1)
	for i := range out {
		out[i].i = i
		switch {
		case way == 0:
			out[i].fate = lost
		case way == 1:
			out[i].fate = whole
		case way == 2 && i < cut:
			out[i].fate = whole
		case way == 2 && i == cut:
			out[i].fate = torn
		case way == 2:
			out[i].fate = lost
		default:
			out[i].fate = fate(r.IntN(3))
		}
	}
	return out
}

// survive applies to c what a crash leaves of changes.
func survive(c *content, changes []change, r *rand.Rand) {
	for _, d := range lot(r, len(changes)) {
		switch d.fate {
		case whole:
			changes[d.i].apply(c)
		case torn:
			changes[d.i].applyTorn(c, r)
		}
	}
}
