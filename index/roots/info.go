package roots

import "time"

// State of a checkpoint.
type State string

const (
	// Sealed: immutable, complete, on stable storage.
	Sealed State = "sealed"
	// Writing: a Draft of this process is open on it.
	Writing State = "writing"
	// Incomplete: its writer died before sealing it. gc removes it.
	Incomplete State = "incomplete"
)

// Info describes one checkpoint. Byte counts are of its regular files.
//
//	Logical = Zero + Unique + Shared
//
// Unique and Shared are taken against all other sealed checkpoints of the store at the time of asking; Stored is
// what the distinct chunks of this checkpoint occupy in packs, compressed and page-aligned, shared ones included.
type Info struct {
	Name     string    `json:"name"`
	ID       string    `json:"id"` // hex; unique for ever, also when a name is used again
	State    State     `json:"state"`
	Created  time.Time `json:"created"`
	SealedAt time.Time `json:"sealed_at,omitzero"`
	Tags     []string  `json:"tags,omitempty"`
	Parent   string    `json:"parent,omitempty"`   // the checkpoint its parent link names
	Children []string  `json:"children,omitempty"` // sealed or writing checkpoints whose parent it is
	Files    int       `json:"files"`
	Logical  int64     `json:"logical"`
	Zero     int64     `json:"zero"`
	Unique   int64     `json:"unique"`
	Shared   int64     `json:"shared"`
	Stored   int64     `json:"stored"`

	// Damage says why List and Usage could not count a sealed checkpoint: Unique, Shared and Stored are -1 then.
	Damage string `json:"damage,omitempty"`

	Labels map[string]string `json:"labels,omitempty"` // host, command, user, started, and what users add

	// Bucket is the identity of the bucket that it was pulled from, in hex; "" for none.
	Bucket string `json:"-"`

	// Restoring: processes that are restored from it lack memory. It cannot be removed; see [Set.Keep].
	Restoring bool `json:"-"`
}
