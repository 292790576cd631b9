package service

import (
	"context"
	"fmt"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/selection"
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

	Labels map[string]string `json:"labels,omitempty"`
	Place  string            `json:"place,omitempty"` // in a list of a store with a remote store: see uploads.Place
}

func brief(i index.Info) Brief {
	return Brief{
		i.Name,
		i.ID,
		i.State,
		i.Created,
		i.SealedAt,
		i.Tags,
		i.Parent,
		i.Children,
		i.Files,
		i.Logical,
		i.Zero,
		i.Labels,
		"",
	}
}

// NamesRequest asks for the checkpoints of a store, uncounted.
type NamesRequest struct{ selection.Select }

// NamesResult are checkpoints, in the order that was asked for.
type NamesResult struct {
	Checkpoints []Brief `json:"checkpoints"`
	// what the store keeps without being able to account for it
	SetAside []index.SetAside `json:"set_aside,omitempty"`
}

// Names lists checkpoints, fast.
var Names = define("names", func(ctx context.Context, env *Env, r NamesRequest) (NamesResult, error) {
	if r.Counted() {
		return NamesResult{}, &index.Error{Class: index.Invalid, Op: "ls",
			Err: fmt.Errorf("%s bytes are not counted", r.Sort), Hint: "leave --fast out"}
	}
	all, err := env.Store.Names(ctx)
	if err == nil {
		all, err = r.Apply(all)
	}
	if err != nil {
		return NamesResult{}, err
	}
	res := NamesResult{Checkpoints: []Brief{}}
	res.SetAside, err = env.Store.SetAside()
	for _, i := range all {
		b := brief(i)
		b.Place = env.uploads().Place(i)
		res.Checkpoints = append(res.Checkpoints, b)
	}
	return res, err
})

// ListRequest asks for the checkpoints of a store with exact byte counts.
type ListRequest struct{ selection.Select }

// Listed is a checkpoint with what its processes had on AMD GPUs.
type Listed struct {
	index.Info
	Place string `json:"place,omitempty"` // in a store with a remote store: see uploads.Place
	// nil where there is nothing, or nothing that can be read: info tells why
	GPU *gpu.Totals `json:"gpu,omitempty"`
}

// ListResult are checkpoints, in the order that was asked for.
type ListResult struct {
	Checkpoints []Listed `json:"checkpoints"`
	// what the store keeps without being able to account for it
	SetAside []index.SetAside `json:"set_aside,omitempty"`
}

// List lists checkpoints with exact byte counts.
var List = define("ls", func(ctx context.Context, env *Env, r ListRequest) (ListResult, error) {
	all, err := env.Store.List(ctx)
	if err == nil {
		all, err = r.Apply(all)
	}
	if err != nil {
		return ListResult{}, err
	}
	res := ListResult{Checkpoints: []Listed{}}
	if res.SetAside, err = env.Store.SetAside(); err != nil {
		return ListResult{}, err
	}
	for _, i := range all {
		l := Listed{Info: i, Place: env.uploads().Place(i)}
		if i.State == index.Sealed {
			if c, err := env.Store.Checkpoint(i.Name); err == nil {
				if l.GPU, err = gpu.Count(c.FS()); index.ClassOf(err) == index.Corrupt && l.Damage == "" {
					l.Damage = err.Error()
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
		res.Entries = append(
			res.Entries,
			Entry{
				Path:    e.Path,
				Mode:    e.Mode.String(),
				Size:    e.Size,
				Zero:    e.Zero,
				ModTime: e.ModTime.UTC(),
				Target:  e.Target,
			},
		)
	}
	return res, nil
})
