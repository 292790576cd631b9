// Package fault is how the store fails: errors that are classified once, where they are found, and the classes that
// callers branch on.
package fault

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/keys"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/pack"
)

// Class says what kind of failure an error is. Callers branch on classes, never on texts: fs/ turns them into an
// errno, main into an exit code.
type Class int

const (
	// Other is every failure that no class below describes.
	Other Class = iota
	// NotFound: no store, checkpoint, file, tag or chunk of that name.
	NotFound
	// NoStore: the folder is not a store.
	NoStore
	// Exists: a checkpoint or file of that name is there already.
	Exists
	// InUse: another process, or another writer in this one, holds what was asked for.
	InUse
	// Corrupt: bytes on disk are not the bytes that were written. Never answered with data.
	Corrupt
	// NoSpace: the file system is full, or down to the floor that is kept free.
	NoSpace
	// ReadOnly: the checkpoint is sealed, or the store is open for reading only, or lies where nothing can be written.
	ReadOnly
	// Invalid: the caller's argument cannot be used.
	Invalid
	// Unsupported: a format version or feature this build does not know.
	Unsupported
	// Unreachable: it lies in a bucket, and cannot be had from there now.
	Unreachable
	// Locked: it is encrypted, and the key was not given, or another one.
	Locked
)

var classNames = map[Class]string{
	Other: "error", NotFound: "not found", NoStore: "no store", Exists: "exists", InUse: "in use", Corrupt: "corrupt",
	NoSpace: "no space", ReadOnly: "read-only", Invalid: "invalid", Unsupported: "unsupported",
	Unreachable: "unreachable", Locked: "locked",
}

func (c Class) String() string { return classNames[c] }

// Error is a failure of the store, classified once where it was found.
type Error struct {
	Class      Class
	Op         string // what was being done: "open store", "read"
	Checkpoint string // name of the checkpoint concerned, if any
	File       string // path within the checkpoint, or of a file of the store
	Offset     int64  // byte offset in File; meaningful when File is set and Class is Corrupt
	Hint       string // what the user can do, without the word "hint"
	Err        error  // the cause
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		b.WriteString(": ")
	}
	switch {
	case e.Checkpoint != "" && e.File != "":
		fmt.Fprintf(&b, "checkpoint %s, file %s: ", e.Checkpoint, e.File)
	case e.Checkpoint != "":
		fmt.Fprintf(&b, "checkpoint %s: ", e.Checkpoint)
	case e.File != "":
		fmt.Fprintf(&b, "%s: ", e.File)
	}
	if e.Err != nil {
		b.WriteString(e.Err.Error())
	} else {
		b.WriteString(e.Class.String())
	}
	if e.Class == Corrupt && e.Offset > 0 {
		fmt.Fprintf(&b, " (at offset %d)", e.Offset)
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf gives the class of the first *Error in err's chain, Other when there is none.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Other
}

// At gives err the place where it happened: a checkpoint, and a file of it or "". Class and hint stay.
func At(op, checkpoint, file string, err error) error {
	return &Error{Class: ClassOf(err), Op: op, Checkpoint: checkpoint, File: file, Hint: HintOf(err), Err: err}
}

// HintOf gives the first non-empty hint in err's chain.
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}

// ReadOnlyHint is what to do when the store cannot be written.
const ReadOnlyHint = "to write, mount the store's disk read-write, and be root or the store's owner; " +
	"ls, info, du, diff, export, verify and mount of a sealed checkpoint need no more than to read"

// RepairHint is what to do about an index that does not open.
func RepairHint(dir string) string { return "rebuild it with: gpucr-fs repair " + dir }

// Classify turns an error of the packs or of the index into one of ours.
func Classify(op string, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	class, hint := OfOS(err), ""
	switch {
	case errors.Is(err, pack.ErrVersion):
		class, hint = Unsupported, "use a later gpucr-fs"
	case errors.Is(err, pack.ErrCorrupt), errors.Is(err, keys.ErrDamaged), errors.Is(err, keys.ErrMissing):
		class = Corrupt
	case errors.Is(err, pack.ErrTooLarge), errors.Is(err, manifest.ErrLimit):
		class = Invalid
	case errors.Is(err, unix.EROFS), errors.Is(err, keys.ErrReadOnly):
		class, hint = ReadOnly, ReadOnlyHint
	case errors.Is(err, pack.ErrNoSpace):
		class, hint = NoSpace, "free space on the store's file system: remove checkpoints and run gpucr-fs gc"
	}
	return &Error{Class: class, Op: op, Hint: hint, Err: err}
}

// Unreadable is the error of a file of the store at dir that could not be read. It is damage, and repair is named,
// unless err has a class, or is a lack that tells nothing of the file.
func Unreadable(op, dir, file string, err error) error {
	e := *Classify(op, err).(*Error)
	if e.File == "" {
		e.File = file
	}
	if e.Class == Other && !keys.Lacks(err) {
		e.Class = Corrupt
	}
	if e.Hint == "" && !keys.Lacks(err) {
		e.Hint = RepairHint(dir)
	}
	return &e
}

// IsNoSpace says whether the disk was full, or down to its floor.
func IsNoSpace(err error) bool {
	return ClassOf(err) == NoSpace || errors.Is(err, pack.ErrNoSpace) || OfOS(err) == NoSpace
}

// OfOS classifies an error of the operating system.
func OfOS(err error) Class {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return NoSpace
	case errors.Is(err, os.ErrNotExist):
		return NotFound
	case errors.Is(err, os.ErrExist):
		return Exists
	case errors.Is(err, unix.EROFS):
		return ReadOnly
	}
	return Other
}
