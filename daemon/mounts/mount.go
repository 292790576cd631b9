package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gpucr/gpucr-fs/fs"
	"github.com/gpucr/gpucr-fs/index"
)

// Mount is a mount being served, as [fs.Server] does it.
type Mount interface {
	// Draft gives a checkpoint that is being written through this mount; false when there is none of that name.
	Draft(name string) (*index.Draft, bool)
	// Seal completes a checkpoint that is being written through this mount; Class NotFound when there is none of that
	// name.
	Seal(ctx context.Context, name string) (index.Info, error)
	// Discard gives a checkpoint up that is being written through this mount.
	Discard(name string) error
	// Failure gives the first error of a write to a checkpoint that is being written through this mount, nil without
	// one.
	Failure(name string) error
	// Settle ends one whose writer is gone: sealed if it is complete, else given up.
	Settle(ctx context.Context, name string) error
	// Unmount flushes and detaches. Class InUse when the mount has users; it goes on then.
	Unmount(ctx context.Context) error
	// Close detaches from under its users.
	Close() error
	// Wait returns when the mount is gone, whoever unmounted it; the error says what could not be sealed.
	Wait() error
	// Stats gives counters since mounting.
	Stats() fs.Stats
	// Root leads into a private mount, which is attached nowhere.
	Root() *os.File
	// Instead has a private mount show other contents for some files, see fs.Server.
	Instead(files map[string][]byte, parent bool)
}

// OnAccess is told of reads through a mount, see fs.Options.
type OnAccess = func(checkpoint, path string, off, n int64)

// Request describes a mount. Without Dir nothing is mounted, and the page and the metrics are served all the same.
type Request struct {
	Dir         string   `json:"dir"`                   // absolute; of a private mount only what it is called
	Checkpoint  string   `json:"checkpoint,omitempty"`  // shown as the root; the one sealed last when empty
	New         string   `json:"new,omitempty"`         // a new checkpoint to show as the root, for writing
	Tags        []string `json:"tags,omitempty"`        // of New
	AllowOther  bool     `json:"allow_other,omitempty"` // let other users in
	ReadaheadKB int      `json:"readahead_kb,omitempty"`
	MetricsAddr string   `json:"metrics_addr,omitempty"` // where to serve Prometheus, see web.Where
	PageAddr    string   `json:"page_addr,omitempty"`    // where to serve the page, see web.Where
	TokenFile   string   `json:"token_file,omitempty"`   // for both, see web.Where
	Debug       bool     `json:"debug,omitempty"`        // log every request of the kernel
	Private     bool     `json:"private,omitempty"`      // of one restore or dump, which removes it; attached nowhere
	Namespace   string   `json:"namespace,omitempty"`    // the mount namespace in which Dir is meant, see fs.Namespace
	ReadOnly    bool     `json:"read_only,omitempty"`    // nothing in the store may change
}

// Result is a mount that serves.
type Result struct {
	Dir        string `json:"dir"`
	Store      string `json:"store"`
	Checkpoint string `json:"checkpoint,omitempty"`
	New        string `json:"new,omitempty"`
	PID        int    `json:"pid"`                 // of the daemon
	Metrics    string `json:"metrics,omitempty"`   // where they are served
	Page       string `json:"page,omitempty"`      // where it is served
	ReadOnly   bool   `json:"read_only,omitempty"` // the store is open for reading only
}

// checkNamespace refuses a mount that would not be seen by the one who asks for it.
func (r *Request) checkNamespace() error {
	here, err := fs.Namespace()
	if err != nil || r.Namespace == "" || r.Namespace == here {
		return err
	}
	return &index.Error{Class: index.Unsupported, Op: "mount", File: r.Dir,
		Err: fmt.Errorf("the store's daemon, process %d, is in another mount namespace, where the mount would be",
			os.Getpid()),
		Hint: fmt.Sprintf("mount it there (nsenter -t %d -m) and bind it to where it is needed, "+
			"or end the daemon by unmounting there", os.Getpid())}
}

// Validate refuses a mount that cannot be meant.
func (r *Request) Validate() error {
	if r.Checkpoint != "" && r.New != "" {
		return &index.Error{Class: index.Invalid, Op: "mount",
			Err: errors.New("a mount shows either a checkpoint or a new one"), Hint: "drop --checkpoint or --new"}
	}
	return nil
}
