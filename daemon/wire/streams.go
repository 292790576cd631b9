package wire

import "io"

// Progress tells how far an operation has come. Total is 0 while it is not known.
type Progress struct {
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
	Unit  string `json:"unit"` // "bytes" or "packs"
	Item  string `json:"item,omitempty"`
}

// Streams are what an operation takes and gives beside its request and result. All are optional.
type Streams struct {
	In       io.Reader      // raw input
	Out      io.Writer      // raw output
	Progress func(Progress) // called from one goroutine at a time
}
