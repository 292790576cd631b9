package fs

import (
	"errors"
	"log/slog"

	"github.com/gpucr/gpucr-fs/index"
)

// Options of a mount. The zero value mounts a root that follows the checkpoint sealed last.
type Options struct {
	// Checkpoint is shown as the root: a name, tag or ID prefix, as index.Store.Checkpoint takes it. Empty: follow the
	// one sealed last.
	Checkpoint string
	// New makes a draft of this name and shows it as the root. Not together with Checkpoint.
	New string
	// Tags are those of New.
	Tags []string
	// Labels are those of checkpoints that are made in the mount.
	Labels map[string]string
	// Logger takes what an administrator should see. Default: discards.
	Logger *slog.Logger
	// ReadaheadKB is what the kernel reads ahead, in KiB. Default 8192; negative leaves the kernel's 128.
	ReadaheadKB int
	// MaxBackground bounds the requests the kernel sends ahead of anyone waiting for them. Default 64.
	MaxBackground int
	// ScratchBytes bounds what scratch files take of the store's file system. Default 1 GiB.
	ScratchBytes int64
	// OnAccess, if set, is told every read of sealed content that reaches the mount: bytes [off, off+n) of path. It
	// must be quick and not use the mount.
	OnAccess func(checkpoint, path string, off, n int64)
	// AllowOther lets other users in, as far as file modes allow. Default: the mounting user only.
	AllowOther bool
	// Debug logs every FUSE request.
	Debug bool
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.ReadaheadKB == 0 {
		o.ReadaheadKB = 8192
	}
	if o.MaxBackground == 0 {
		o.MaxBackground = 64
	}
	if o.ScratchBytes == 0 {
		o.ScratchBytes = 1 << 30
	}
}

// Validate refuses options that cannot be meant.
func (o *Options) Validate() error {
	invalid := func(text, hint string) error {
		return &index.Error{Class: index.Invalid, Op: "mount", Err: errors.New(text), Hint: hint}
	}
	switch {
	case o.Checkpoint != "" && o.New != "":
		return invalid("a root cannot be both an old and a new checkpoint", "give either a checkpoint or a new name")
	case len(o.Tags) > 0 && o.New == "":
		return invalid("tags are for a new checkpoint", "give it a name")
	case o.MaxBackground < 0 || o.MaxBackground > 1<<16-1:
		return invalid("background requests must be between 1 and 65535", "")
	case o.ScratchBytes < 0:
		return invalid("scratch bytes must not be negative", "")
	}
	return nil
}
