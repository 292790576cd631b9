package service

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/retention"
	"github.com/gpucr/gpucr-fs/index"
)

// RemoveRequest selects checkpoints by exactly one of its first three fields.
type RemoveRequest struct {
	Names []string `json:"names,omitempty"`
	// IDs are those of Names, in the same order, as a user has seen them: another checkpoint that has got such a name
	// since is not removed. With Keep, only these checkpoints may be removed.
	IDs    []string `json:"ids,omitempty"`
	Tag    string   `json:"tag,omitempty"`
	Keep   *Policy  `json:"keep,omitempty"`
	DryRun bool     `json:"dry_run,omitempty"`
}

// Policy says which sealed checkpoints to keep; see [retention.Policy].
type Policy = retention.Policy

// Kept is a checkpoint that a policy spares; see [retention.Kept].
type Kept = retention.Kept

// RemoveResult says what was removed, or would be in a dry run.
type RemoveResult struct {
	DryRun  bool    `json:"dry_run"`
	Removed []Brief `json:"removed"`
	Kept    []Kept  `json:"kept"` // by a policy only
}

// Remove removes checkpoints, all of the selection or none. Their payload goes with the next gc.
var Remove = define("rm", func(ctx context.Context, env *Env, r RemoveRequest) (RemoveResult, error) {
	for try := 1; ; try++ {
		all, err := env.Store.Names(ctx)
		if err != nil {
			return RemoveResult{}, err
		}
		res, err := selectRemoved(all, r, time.Now())
		if err != nil || r.DryRun || len(res.Removed) == 0 {
			return res, err
		}
		ids := make([]string, len(res.Removed))
		for i, c := range res.Removed {
			ids[i] = c.ID // a name may be that of another by now
		}
		err = env.Store.RemoveIDs(ctx, ids)
		// A policy keeps what has come to be in use since it was applied.
		if r.Keep.Empty() || index.ClassOf(err) != index.InUse || try == removeTries {
			return res, err
		}
	}
})

// removeTries is how often a policy is applied while checkpoints of its selection come to be in use.
const removeTries = 5

func removeError(class index.Class, name, hint, format string, a ...any) error {
	return &index.Error{Class: class, Op: "rm", Checkpoint: name, Hint: hint, Err: fmt.Errorf(format, a...)}
}

// selectRemoved applies a request to all checkpoints of a store, oldest first, as of now. It refuses what Store.Remove
// would, so that a dry run tells the truth.
func selectRemoved(all []index.Info, r RemoveRequest, now time.Time) (RemoveResult, error) {
	ways := 0
	for _, used := range []bool{len(r.Names) > 0, r.Tag != "", !r.Keep.Empty()} {
		if used {
			ways++
		}
	}
	if ways != 1 {
		return RemoveResult{}, removeError(
			index.Invalid, "", "give names, or --tag, or --keep-… rules",
			"it is not clear which checkpoints to remove",
		)
	}
	res := RemoveResult{DryRun: r.DryRun, Removed: []Brief{}, Kept: []Kept{}}
	if !r.Keep.Empty() {
		remove, kept, err := r.Keep.Apply(all, now)
		for _, c := range remove {
			if len(r.IDs) == 0 || slices.Contains(r.IDs, c.ID) {
				res.Removed = append(res.Removed, brief(c))
			}
		}
		res.Kept = kept
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
			return RemoveResult{}, removeError(
				index.NotFound, "", "gpucr-fs ls STORE shows the tags", "no checkpoint bears the tag %.128q", r.Tag,
			)
		}
	}
	going := map[string]bool{}
	if len(r.IDs) > 0 && len(r.IDs) != len(r.Names) {
		return RemoveResult{}, removeError(index.Invalid, "", "", "%d ids of %d names", len(r.IDs), len(r.Names))
	}
	for i, n := range names {
		c, ok := byName[n]
		if ok && len(r.IDs) > 0 && c.ID != r.IDs[i] {
			return RemoveResult{}, removeError(
				index.InUse, n, "look again, nothing was removed",
				"it is another checkpoint than the one that was shown",
			)
		}
		if !ok {
			return RemoveResult{}, removeError(
				index.NotFound, "", "gpucr-fs ls STORE shows the names", "there is no checkpoint %.128q", n,
			)
		}
		if !going[n] {
			going[n] = true
			res.Removed = append(res.Removed, brief(c))
		}
	}
	for _, c := range res.Removed {
		if c.State == index.Writing {
			return RemoveResult{}, removeError(
				index.InUse, c.Name, "wait for its writer, or give it up: rm -r MOUNT/.checkpoints/"+c.Name,
				"it is being written",
			)
		}
		if byName[c.Name].Restoring {
			return RemoveResult{}, removeError(index.InUse, c.Name, index.HintKept, index.WhyKept)
		}
		for _, child := range c.Children {
			if !going[child] {
				return RemoveResult{}, removeError(
					index.InUse, c.Name, "remove "+child+" too, or first",
					"checkpoint %s is incremental and needs it", child,
				)
			}
		}
	}
	return res, nil
}
