package upkeep

import (
	"time"

	"github.com/gpucr/gpucr-fs/index/aside"
	"github.com/gpucr/gpucr-fs/index/remote/object"
)

// GCOptions of one collection.
type GCOptions struct {
	DryRun   bool
	Progress func(done, total int64) // packs
	// Stands says whether a checkpoint of the store's bucket needs a pack there. What is known of packs that none
	// needs, there or here, is given back. nil: nobody knows, and all of that stays.
	Stands func(object.Name) bool
}

// GCResult says what a collection found and gave back. In a dry run Reclaimed is 0 and nothing was changed.
type GCResult struct {
	Reclaimable int64    `json:"reclaimable"` // bytes of disk that dead payload occupies
	Reclaimed   int64    `json:"reclaimed"`   // bytes given back to the file system
	DeadChunks  int64    `json:"dead_chunks"`
	LiveChunks  int64    `json:"live_chunks"`
	PacksGone   int      `json:"packs_dropped"`
	Forgotten   int      `json:"forgotten,omitempty"` // packs of the bucket of which nothing is known any more
	Incomplete  []string `json:"incomplete"`          // checkpoints of dead writers, removed
	Kept        []string `json:"kept,omitempty"`      // packs left alone: their journals do not tell all that they hold
}

// OptimizeOptions of one optimization.
type OptimizeOptions struct {
	DryRun   bool                    // encode and count, and write nothing
	Rate     int64                   // bytes a second read at most; 0 is no bound
	Busy     func() bool             // whether somebody else should have the machine; nil: nobody
	Progress func(done, total int64) // bytes of payload looked at
}

// OptimizeResult says what an optimization did. In a dry run it says what one would do.
type OptimizeResult struct {
	Chunks    int64 `json:"chunks"`    // stored fast or not compressed, in use
	Rewritten int64 `json:"rewritten"` // of these, stored anew smaller
	Skipped   int64 `json:"skipped"`   // of these, left as they are: no smaller, damaged, or changed meanwhile
	Damaged   int64 `json:"damaged"`   // of the skipped, unreadable: verify names what needs them
	Before    int64 `json:"before"`    // bytes of disk that the rewritten ones took
	After     int64 `json:"after"`     // bytes that they take now; gc gives the rest back
}

// VerifyOptions of one verification.
type VerifyOptions struct {
	Names    []string                // checkpoints; all sealed ones when empty
	Subset   float64                 // share of the payload to read, 0 < Subset <= 1; 0 means 1
	Progress func(done, total int64) // bytes of stored payload
	Rate     int64                   // bytes of stored payload read in a second; 0 is no bound
	Resume   bool                    // go on with a verification of the whole store that was interrupted, if any
}

// Problem is one piece of damage. Checkpoint and File are set when a sealed file is concerned.
type Problem struct {
	Checkpoint string `json:"checkpoint,omitempty"`
	File       string `json:"file,omitempty"`
	Offset     int64  `json:"offset"`
	Pack       string `json:"pack,omitempty"`
	Text       string `json:"text"`
}

// VerifyResult is what a verification saw. The store is sound when Problems is empty.
type VerifyResult struct {
	Checkpoints int           `json:"checkpoints"`
	Chunks      int64         `json:"chunks"`
	Bytes       int64         `json:"bytes"`             // stored payload read and checked
	Distant     int64         `json:"distant,omitempty"` // chunks in use that lie in a bucket; they are not read
	Problems    []Problem     `json:"problems"`
	SetAside    []aside.Entry `json:"set_aside,omitempty"` // what is kept without being accounted for
	Begun       time.Time     `json:"begun,omitzero"`      // where it went on with another one: when that began
	Earlier     int64         `json:"earlier,omitempty"`   // bytes that the other one had read and checked
}
