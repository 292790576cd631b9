package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gpucr/gpucr-fs/archive"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// ImportRequest asks to bring in a directory or an archive.
type ImportRequest struct {
	Name     string            `json:"name"`
	Source   string            `json:"source,omitempty"` // absolute; empty: an archive comes as the input stream
	Tags     []string          `json:"tags,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Parent   string            `json:"parent,omitempty"`
	MaxFiles int               `json:"max_files,omitempty"`
	MaxBytes int64             `json:"max_bytes,omitempty"`
	MaxRatio int64             `json:"max_ratio,omitempty"`
}

// ImportResult says what came in.
type ImportResult struct {
	Checkpoint  Brief    `json:"checkpoint"`
	Directories int      `json:"directories"`
	Symlinks    int      `json:"symlinks"`
	Skipped     []string `json:"skipped"` // sockets, which are never part of a checkpoint
}

// Import brings in a checkpoint and seals it.
var Import = define("import", func(ctx context.Context, env *Env, r ImportRequest) (ImportResult, error) {
	res, err := importFrom(ctx, env, r)
	return ImportResult{brief(res.Checkpoint), res.Directories, res.Symlinks, append([]string{}, res.Skipped...)}, err
})

func importFrom(ctx context.Context, env *Env, r ImportRequest) (archive.Result, error) {
	o := archive.ImportOptions{
		Tags:     r.Tags,
		Labels:   r.Labels,
		Parent:   r.Parent,
		MaxFiles: r.MaxFiles,
		MaxBytes: r.MaxBytes,
		MaxRatio: r.MaxRatio,
		Logger:   env.Log,
		Progress: func(p archive.Progress) { env.Progress(transferProgress(p)) },
	}
	if r.Source == "" {
		if env.In == nil {
			return archive.Result{}, &index.Error{Class: index.Invalid, Op: "import",
				Err: errors.New("neither a source nor an input stream")}
		}
		return archive.ImportStream(ctx, env.Store, r.Name, env.In, 0, o)
	}
	if err := checkPlace(env, "import", r.Source); err != nil {
		return archive.Result{}, err
	}
	return archive.Import(ctx, env.Store, r.Name, r.Source, o)
}

// ExportRequest asks to take a checkpoint out.
type ExportRequest struct {
	Ref         string              `json:"ref"`               // name, tag or ID prefix
	Target      string              `json:"target,omitempty"`  // absolute; empty: an archive goes to the output stream
	Archive     bool                `json:"archive,omitempty"` // Target is an archive file, not a directory
	Compression archive.Compression `json:"compression,omitempty"`
}

// Export writes a checkpoint to a directory, an archive file or the output stream.
var Export = define("export", func(ctx context.Context, env *Env, r ExportRequest) (archive.ExportResult, error) {
	c, err := env.Store.Checkpoint(r.Ref)
	if err != nil {
		return archive.ExportResult{}, err
	}
	o := archive.ExportOptions{Progress: func(p archive.Progress) { env.Progress(transferProgress(p)) }}
	if r.Target == "" {
		if env.Out == nil {
			return archive.ExportResult{}, &index.Error{Class: index.Invalid, Op: "export",
				Err: errors.New("neither a target nor an output stream")}
		}
		out := bufio.NewWriterSize(env.Out, 1<<20)
		res, err := archive.ExportTar(ctx, c, out, r.Compression, o)
		return res, errors.Join(err, out.Flush())
	}
	if err := checkPlace(env, "export", filepath.Dir(r.Target)); err != nil {
		return archive.ExportResult{}, err
	}
	if r.Archive {
		return archive.ExportTarFile(ctx, c, r.Target, r.Compression, o)
	}
	return archive.ExportDir(ctx, c, r.Target, o)
})

func transferProgress(p archive.Progress) wire.Progress {
	return wire.Progress{Done: p.Done, Total: p.Total, Unit: "bytes", Item: p.File}
}

// checkPlace refuses to copy between a store and itself: a daemon that reads its own mount can wait for itself for
// ever, and a store must not hold foreign files.
func checkPlace(env *Env, op, path string) error {
	if !filepath.IsAbs(path) {
		return &index.Error{Class: index.Invalid, Op: op, File: path, Err: errors.New("the path must be absolute")}
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if store := env.Store.Dir(); path == store || hasDir(path, store) {
		return placeError(op, path, "it is in the store itself")
	} else if op == "import" && hasDir(store, path) {
		return placeError(op, path, "the store lies in it")
	}
	if env.Daemon == nil {
		return nil
	}
	// A path that cannot be examined is for the operation itself to complain of.
	dev, devErr := device(path)
	for _, m := range env.Daemon.Mounts.List() {
		under := path == m.Request.Dir || hasDir(path, m.Request.Dir)
		if d, err := device(m.Request.Dir); under || devErr == nil && err == nil && d == dev {
			return placeError(op, path, "it is in a mount of this store")
		}
	}
	return nil
}

func placeError(op, path, why string) error {
	return &index.Error{Class: index.Invalid, Op: op, File: path, Err: errors.New(why), Hint: "copy it elsewhere first"}
}

// hasDir tells whether path lies below dir.
func hasDir(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != "." && filepath.IsLocal(rel)
}

func device(path string) (uint64, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s: no device number", path)
	}
	return uint64(sys.Dev), nil
}
