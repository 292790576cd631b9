package index

import "github.com/gpucr/gpucr-fs/index/fault"

// Error is a failure of the store, classified once where it was found; see package fault.
type Error = fault.Error

// Class says what kind of failure an error is.
type Class = fault.Class

// The classes, as package fault tells of them.
const (
	Other       = fault.Other
	NotFound    = fault.NotFound
	NoStore     = fault.NoStore
	Exists      = fault.Exists
	InUse       = fault.InUse
	Corrupt     = fault.Corrupt
	NoSpace     = fault.NoSpace
	ReadOnly    = fault.ReadOnly
	Invalid     = fault.Invalid
	Unsupported = fault.Unsupported
	Unreachable = fault.Unreachable
	Locked      = fault.Locked
)

// ClassOf gives the class of the first *Error in err's chain, Other when there is none.
func ClassOf(err error) Class { return fault.ClassOf(err) }

// HintOf gives the first non-empty hint in err's chain.
func HintOf(err error) string { return fault.HintOf(err) }
