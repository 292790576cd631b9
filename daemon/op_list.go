package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/index"
)

// Brief is what is known of a checkpoint without comparing it with the others; the fields are those of [index.Info].
type Brief struct {
	Name     string      `json:"name"`
	ID       string      `json:"id"`
	State    index.State `json:"state"`
	Created  time.Time   `json:"created"`
	SealedAt time.Time   `json:"sealed_at,omitzero"`
	Tags     []string    `json:"tags,omitempty"`
	Parent   string      `json:"parent,omitempty"`
	Children []string    `json:"children,omitempty"`
	Files    int         `json:"files"`
	Logical  int64       `json:"logical"`
	Zero     int64       `json:"zero"`
}

func brief(i index.Info) Brief {
	return Brief{i.Name, i.ID, i.State, i.Created, i.SealedAt, i.Tags, i.Parent, i.Children, i.Files, i.Logical, i.Zero}
}

// NamesRequest asks for the checkpoints of a store, uncounted.
type NamesRequest struct {
	Tag string `json:"tag,omitempty"` // only the one of this tag
}

// NamesResult are checkpoints, oldest first.
type NamesResult struct {
	Checkpoints []Brief `json:"checkpoints"`
}

// Names lists checkpoints, fast.
var Names = define("names", func(ctx context.Context, env *Env, r NamesRequest) (NamesResult, error) {
	all, err := env.Store.Names(ctx)
	res := NamesResult{Checkpoints: []Brief{}}
	for _, i := range all {
		if r.Tag == "" || slices.Contains(i.Tags, r.Tag) {
			res.Checkpoints = append(res.Checkpoints, brief(i))
		}
	}
	return res, err
})

// ListRequest asks for the checkpoints of a store with exact byte counts.
type ListRequest struct {
	Tag string `json:"tag,omitempty"` // only the one of this tag
}

// Listed is a checkpoint with what its processes had on AMD GPUs.
type Listed struct {
	index.Info
	GPU *gpu.Totals `json:"gpu,omitempty"` // nil where there is nothing, or nothing that can be read: info tells why
}

// ListResult are checkpoints, oldest first.
type ListResult struct {
	Checkpoints []Listed `json:"checkpoints"`
}

// List lists checkpoints with exact byte counts.
var List = define("ls", func(ctx context.Context, env *Env, r ListRequest) (ListResult, error) {
	all, err := env.Store.List(ctx)
	if err != nil {
		return ListResult{}, err
	}
	res := ListResult{Checkpoints: []Listed{}}
	for _, i := range all {
		if r.Tag != "" && !slices.Contains(i.Tags, r.Tag) {
			continue
		}
		l := Listed{Info: i}
		if i.State == index.Sealed {
			if c, err := env.Store.Checkpoint(i.Name); err == nil {
				if l.GPU, err = gpu.Count(c.FS()); index.ClassOf(err) == index.Corrupt {
					return ListResult{}, err
				}
			}
		}
		res.Checkpoints = append(res.Checkpoints, l)
	}
	return res, nil
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
