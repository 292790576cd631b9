package page

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"slices"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/inspect"
	"github.com/gpucr/gpucr-fs/daemon/layout"
	"github.com/gpucr/gpucr-fs/daemon/profiles"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/sharing"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/feed"
)

// Bounds of the details of a checkpoint that are shown.
const (
	maxProcesses = 400
	maxBOs       = 300
	maxFiles     = 100
	maxSameAs    = 8
)

// Task is a process of a checkpoint, in the order of the tree.
type Task struct {
	Depth   int    `json:"depth"`
	Threads int    `json:"threads"`
	PID     uint32 `json:"pid"`
	Comm    string `json:"comm"`
	Exe     string `json:"exe,omitempty"`
	State   string `json:"state"`

	Memory *inspect.Memory `json:"memory,omitempty"`
}

// Detail is what info tells of a checkpoint, as far as a page can show it.
type Detail struct {
	Checkpoint index.Info      `json:"checkpoint"`
	Frees      int64           `json:"frees"` // -1: not counted yet
	Images     *inspect.Report `json:"images,omitempty"`
	Problem    string          `json:"problem,omitempty"`
	Tasks      []Task          `json:"tasks"`
	TasksAll   int             `json:"tasks_all"`
	GPU        *gpu.Report     `json:"gpu,omitempty"`
	BOsAll     int             `json:"bos_all"`
	GPUProblem string          `json:"gpu_problem,omitempty"`

	Files    []sharing.File `json:"files"` // the largest
	FilesAll int            `json:"files_all"`
}

func (s *Server) checkpoint(ctx context.Context, r *http.Request) (any, error) {
	env := s.o.Env()
	info, err := service.Info.Do(ctx, here{env}, service.InfoRequest{Ref: r.PathValue("id")}, wire.Streams{})
	if err != nil {
		return nil, err
	}
	d := Detail{
		Checkpoint: info.Checkpoint,
		Frees:      -1,
		Problem:    info.Problem,
		Tasks:      []Task{},
		GPU:        info.GPU,
		GPUProblem: info.GPUProblem,
		Files:      info.Files,
		FilesAll:   len(info.Files),
	}
	if b, err := s.keeper.books(ctx); err == nil {
		if i := slices.IndexFunc(b.Rows, func(r Row) bool { return r.ID == info.Checkpoint.ID }); i >= 0 &&
			b.Rows[i].Counted {
			d.Frees = b.Rows[i].Held.Only
		}
	}
	if info.CRIU != nil {
		d.flatten(info.CRIU.Processes, 0)
		d.Images = info.CRIU
		d.Images.Processes = []*inspect.Process{}
	}
	slices.SortFunc(d.Files, func(a, b sharing.File) int { return int(min(max(b.Size-a.Size, -1), 1)) })
	d.Files = d.Files[:min(len(d.Files), maxFiles)]
	if d.GPU != nil {
		d.BOsAll = len(d.GPU.BOs)
		slices.SortStableFunc(d.GPU.BOs, func(a, b gpu.BO) int { return int(min(max(b.Size-a.Size, -1), 1)) })
		d.GPU.BOs = d.GPU.BOs[:min(d.BOsAll, maxBOs)]
		for i := range d.GPU.BOs {
			d.GPU.BOs[i].SameAs = d.GPU.BOs[i].SameAs[:min(len(d.GPU.BOs[i].SameAs), maxSameAs)]
		}
		d.GPU.Processes = d.GPU.Processes[:min(len(d.GPU.Processes), maxProcesses)]
	}
	return d, nil
}

// flatten puts a tree into a list.
func (d *Detail) flatten(list []*inspect.Process, depth int) {
	for _, p := range list {
		if d.TasksAll++; d.TasksAll <= maxProcesses {
			d.Tasks = append(
				d.Tasks,
				Task{
					Depth:   depth,
					PID:     p.PID,
					Comm:    cut(p.Comm),
					Exe:     cut(p.Exe),
					State:   p.State,
					Memory:  p.Memory,
					Threads: len(p.Threads),
				},
			)
		}
		d.flatten(p.Children, depth+1)
	}
}

// Memory is the hot set of a checkpoint over the address spaces of its processes.
type Memory struct {
	// Profile tells that there is one, Anew that the next restore records another.
	Profile   bool             `json:"profile"`
	Anew      bool             `json:"anew"`
	Bytes     int64            `json:"bytes"`   // of the profile
	Touches   int              `json:"touches"` // runs of pages in it
	Processes []layout.Process `json:"processes"`
	All       int              `json:"all"` // processes with memory
	Problem   string           `json:"problem,omitempty"`
}

func (s *Server) memory(_ context.Context, r *http.Request) (any, error) {
	store := s.o.Env().Store
	c, err := store.Checkpoint(r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	out := Memory{Processes: []layout.Process{}}
	_, p, anew, err := profiles.Stored(store, c.Info().ID)
	switch class := index.ClassOf(err); {
	case err == nil:
		out.Anew = anew
	case class == index.Corrupt:
		out.Problem = "the profile cannot be read: " + cut(err.Error())
	case class != index.NotFound:
		return nil, err
	}
	if p != nil {
		out.Profile, out.Bytes, out.Touches = true, p.Bytes(), len(p.Touches)
	}
	dir, ok := inspect.Find(c.FS())
	if !ok {
		return out, nil
	}
	images := feed.Stored{Store: store, Ref: c.Info().ID}.FS()
	if dir != "." {
		if images, err = fs.Sub(c.FS(), dir); err != nil {
			return nil, err
		}
	}
	out.Processes, out.All, err = layout.Of(images, p)
	if err != nil {
		out.Processes, out.Problem = []layout.Process{}, cut(err.Error())
	}
	return out, nil
}

// maxAsked is how many checkpoints one may ask about at once.
const maxAsked = 20000

var errGone = errors.New("a checkpoint is no longer there")

// Frees tells what goes when checkpoints go.
type Frees struct {
	Bytes   int64  `json:"bytes"`
	Refused string `json:"refused,omitempty"` // why they cannot be removed
	Hint    string `json:"hint,omitempty"`
}

// frees counts what the removal of checkpoints would give back. Nothing is removed.
func (s *Server) frees(ctx context.Context, r *http.Request) (any, error) {
	var q struct {
		IDs []string `json:"ids"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&q); err != nil || len(q.IDs) == 0 ||
		len(q.IDs) > maxAsked {
		return nil, invalid("give the IDs of 1 to %d checkpoints", maxAsked)
	}
	env := s.o.Env()
	var out Frees
	all, err := env.Store.Names(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, i := range all {
		names[i.ID] = i.Name
	}
	remove := service.RemoveRequest{DryRun: true, IDs: q.IDs}
	for _, id := range q.IDs {
		if names[id] == "" {
			return nil, &index.Error{Class: index.NotFound, Op: "page", Err: errGone}
		}
		remove.Names = append(remove.Names, names[id])
	}
	if _, err := service.Remove.Do(ctx, here{env}, remove, wire.Streams{}); err != nil {
		out.Refused, out.Hint = cut(err.Error()), index.HintOf(err)
	}
	out.Bytes, err = env.Store.Frees(ctx, q.IDs)
	return out, err
}
