package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// Policy says which sealed checkpoints to keep: those that any of its rules wants.
type Policy struct {
	Last   int           `json:"last,omitempty"`      // so many, sealed last
	Within time.Duration `json:"within_ns,omitempty"` // sealed so long ago at most, counted from the one sealed last
	Tags   []string      `json:"tags,omitempty"`      // bearing one of these
}

func (p *Policy) empty() bool { return p == nil || p.Last == 0 && p.Within == 0 && len(p.Tags) == 0 }

// RemoveRequest selects checkpoints by exactly one of its first three fields.
type RemoveRequest struct {
	Names  []string `json:"names,omitempty"`
	Tag    string   `json:"tag,omitempty"`
	Keep   *Policy  `json:"keep,omitempty"`
	DryRun bool     `json:"dry_run,omitempty"`
}

// Kept is a checkpoint that a policy spares.
type Kept struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// RemoveResult says what was removed, or would be in a dry run.
type RemoveResult struct {
	DryRun  bool    `json:"dry_run"`
	Removed []Brief `json:"removed"`
	Kept    []Kept  `json:"kept"` // by a policy only
}

// Remove removes checkpoints, all of the selection or none. Their payload goes with the next gc.
var Remove = define("rm", func(ctx context.Context, env *Env, r RemoveRequest) (RemoveResult, error) {
	all, err := env.Store.Names(ctx)
	if err != nil {
		return RemoveResult{}, err
	}
	res, err := selectRemoved(all, r)
	if err != nil || r.DryRun || len(res.Removed) == 0 {
		return res, err
	}
	names := make([]string, len(res.Removed))
	for i, c := range res.Removed {
		names[i] = c.Name
	}
	return res, env.Store.Remove(ctx, names)
})

func removeError(class index.Class, name, hint, format string, a ...any) error {
	return &index.Error{Class: class, Op: "rm", Checkpoint: name, Hint: hint, Err: fmt.Errorf(format, a...)}
}

// selectRemoved applies a request to all checkpoints of a store, oldest first. It refuses what Store.Remove would, so that a dry run tells the truth.
func selectRemoved(all []index.Info, r RemoveRequest) (RemoveResult, error) {
	ways := 0
	for _, used := range []bool{len(r.Names) > 0, r.Tag != "", !r.Keep.empty()} {
		if used {
			ways++
		}
	}
	if ways != 1 {
		return RemoveResult{}, removeError(index.Invalid, "", "give names, or --tag, or --keep-… rules", "checkpoints are selected in exactly one way")
	}
	res := RemoveResult{DryRun: r.DryRun, Removed: []Brief{}, Kept: []Kept{}}
	if !r.Keep.empty() {
		var err error
		res.Removed, res.Kept, err = r.Keep.apply(all)
		return res, err
	}
	byName := map[string]index.Info{}
	for _, c := range all {
		byName[c.Name] = c
	}
	names := r.Names
	if r.Tag != "" {
		for _, c := range all {
			if slices.Contains(c.Tags, r.Tag) {
				names = append(names, c.Name)
			}
		}
		if len(names) == 0 {
			return RemoveResult{}, removeError(index.NotFound, "", "gpucr-fs ls STORE shows the tags", "no checkpoint bears the tag %.128q", r.Tag)
		}
	}
	going := map[string]bool{}
	for _, n := range names {
		c, ok := byName[n]
		if !ok {
			return RemoveResult{}, removeError(index.NotFound, "", "gpucr-fs ls STORE shows the names", "there is no checkpoint %.128q", n)
		}
		if !going[n] {
			going[n] = true
			res.Removed = append(res.Removed, brief(c))
		}
	}
	for _, c := range res.Removed {
		if c.State == index.Writing {
			return RemoveResult{}, removeError(index.InUse, c.Name, "seal it first, or unmount", "it is being written")
		}
		for _, child := range c.Children {
			if !going[child] {
				return RemoveResult{}, removeError(index.InUse, c.Name, "remove "+child+" too, or first", "checkpoint %s is incremental and needs it", child)
			}
		}
	}
	return res, nil
}

// apply splits the sealed checkpoints into those to remove and those to keep. What a kept one or a writing one needs as its parent is kept, too.
func (p *Policy) apply(all []index.Info) (remove []Brief, kept []Kept, err error) {
	if p.Last < 0 || p.Within < 0 {
		return nil, nil, removeError(index.Invalid, "", "", "a rule to keep checkpoints must not be negative")
	}
	sealed := make([]index.Info, 0, len(all))
	for _, c := range all {
		if c.State == index.Sealed {
			sealed = append(sealed, c)
		}
	}
	remove, kept = []Brief{}, []Kept{}
	if len(sealed) == 0 {
		return remove, kept, nil
	}
	slices.SortStableFunc(sealed, func(a, b index.Info) int { return a.SealedAt.Compare(b.SealedAt) })
	reason := p.reasons(sealed)
	if len(reason) == 0 {
		return nil, nil, removeError(index.Invalid, "", "name the checkpoints to remove them all", "the rules keep nothing")
	}
	spareParents(all, reason)
	for _, c := range sealed {
		if why, ok := reason[c.Name]; ok {
			kept = append(kept, Kept{c.Name, why})
		} else {
			remove = append(remove, brief(c))
		}
	}
	return remove, kept, nil
}

// reasons gives what the rules themselves keep; sealed is ordered by time.
func (p *Policy) reasons(sealed []index.Info) map[string]string {
	reason := map[string]string{}
	newest := sealed[len(sealed)-1].SealedAt
	for i, c := range sealed {
		switch {
		case i >= len(sealed)-p.Last:
			reason[c.Name] = fmt.Sprintf("one of the last %d", p.Last)
		case p.Within > 0 && newest.Sub(c.SealedAt) <= p.Within:
			reason[c.Name] = "within " + p.Within.String()
		default:
			for _, t := range c.Tags {
				if slices.Contains(p.Tags, t) {
					reason[c.Name] = "tag " + t
				}
			}
		}
	}
	return reason
}

// spareParents adds the parents of what stays, and theirs.
func spareParents(all []index.Info, reason map[string]string) {
	parent := map[string]string{}
	var stays []string
	for _, c := range all {
		parent[c.Name] = c.Parent
		if _, ok := reason[c.Name]; ok || c.State == index.Writing {
			stays = append(stays, c.Name)
		}
	}
	for _, name := range stays {
		for p := parent[name]; p != ""; name, p = p, parent[p] {
			if _, ok := reason[p]; ok {
				break
			}
			reason[p] = "parent of " + name
		}
	}
}

// ParseWithin reads a duration like 7d12h: whole numbers of w, d, h, m (minutes) and s, in any order.
func ParseWithin(s string) (time.Duration, error) {
	units := map[byte]time.Duration{'w': 7 * 24 * time.Hour, 'd': 24 * time.Hour, 'h': time.Hour, 'm': time.Minute, 's': time.Second}
	var sum time.Duration
	digits := 0
	var n int64
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			if digits++; digits > 9 {
				return 0, errors.New("the number is too large")
			}
			n = n*10 + int64(c-'0')
		case digits > 0 && units[c] != 0:
			if n > int64((1<<63-1-sum)/units[c]) {
				return 0, errors.New("the time is too long")
			}
			sum += time.Duration(n) * units[c]
			n, digits = 0, 0
		default:
			return 0, fmt.Errorf("%q is not a time like 7d12h", s)
		}
	}
	if digits > 0 || s == "" {
		return 0, fmt.Errorf("%q is not a time like 7d12h", s)
	}
	return sum, nil
}
