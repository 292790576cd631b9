package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// ListRequest asks for the checkpoints of a store.
type ListRequest struct {
	Tag  string `json:"tag,omitempty"`  // only the one of this tag
	Fast bool   `json:"fast,omitempty"` // without Unique, Shared and Stored
}

// ListResult are checkpoints, oldest first.
type ListResult struct {
	Checkpoints []index.Info `json:"checkpoints"`
}

// List lists checkpoints.
var List = define("ls", func(ctx context.Context, env *Env, r ListRequest) (ListResult, error) {
	get := env.Store.List
	if r.Fast {
		get = env.Store.Names
	}
	all, err := get(ctx)
	if err != nil {
		return ListResult{}, err
	}
	if r.Tag != "" {
		all = slices.DeleteFunc(all, func(i index.Info) bool { return !slices.Contains(i.Tags, r.Tag) })
	}
	return ListResult{Checkpoints: append([]index.Info{}, all...)}, nil
})

// EntriesRequest asks for the files of a checkpoint.
type EntriesRequest struct {
	Ref string `json:"ref"` // name, tag or ID prefix
}

// Entry is a file, directory or symbolic link.
type Entry struct {
	Path    string    `json:"path"`
	Mode    string    `json:"mode"` // as ls -l shows it
	Size    int64     `json:"size"`
	Zero    int64     `json:"zero"`
	ModTime time.Time `json:"mod_time"`
	Target  string    `json:"target,omitempty"`
}

// EntriesResult are the entries of one checkpoint, by path.
type EntriesResult struct {
	Checkpoint string  `json:"checkpoint"`
	Entries    []Entry `json:"entries"`
}

// Entries lists the files of a checkpoint.
var Entries = define("entries", func(_ context.Context, env *Env, r EntriesRequest) (EntriesResult, error) {
	c, err := env.Store.Checkpoint(r.Ref)
	if err != nil {
		return EntriesResult{}, err
	}
	res := EntriesResult{Checkpoint: c.Info().Name, Entries: []Entry{}}
	for _, e := range c.Entries() {
		res.Entries = append(res.Entries, Entry{Path: e.Path, Mode: e.Mode.String(), Size: e.Size, Zero: e.Zero, ModTime: e.ModTime.UTC(), Target: e.Target})
	}
	return res, nil
})
