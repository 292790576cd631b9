package bucket

import (
	"errors"
	"fmt"
	"strings"
)

// Class says what kind of failure an error is. Callers branch on classes, never on texts.
type Class int

const (
	// Other is every failure that no class below describes.
	Other Class = iota
	// NotFound: there is no object of that name.
	NotFound
	// Precondition: the condition of a write or removal did not hold, and nothing was changed.
	Precondition
	// Transient: the server or the way to it failed for now. Nobody knows whether a write happened.
	Transient
	// Denied: the credentials are missing, wrong or expired, or do not suffice.
	Denied
	// NoBucket: the bucket does not exist, or no longer.
	NoBucket
	// Corrupt: the bytes that came are not those that were announced.
	Corrupt
	// Invalid: the caller's argument, or the bucket's address, cannot be used.
	Invalid
	// Unsupported: the server does not do what was asked for.
	Unsupported
)

var classNames = [...]string{
	Other: "error", NotFound: "not found", Precondition: "precondition failed", Transient: "temporary failure",
	Denied: "access denied", NoBucket: "no such bucket", Corrupt: "corrupt", Invalid: "invalid",
	Unsupported: "unsupported",
}

func (c Class) String() string { return classNames[c] }

var errTooLarge = errors.New("the object is larger than its kind may be")

// Error is a failure of a bucket, classified once where it was found. It holds no secrets.
type Error struct {
	Class Class
	Op    string // what was being done: "get", "put"
	Key   string // the object concerned, if any
	Hint  string // what the user can do, without the word "hint"
	Err   error  // the cause
}

func (e *Error) Error() string {
	parts := make([]string, 0, 3)
	if e.Op != "" {
		parts = append(parts, strings.TrimSpace(e.Op+" "+e.Key))
	}
	if e.Class != Other {
		parts = append(parts, e.Class.String())
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fail makes an error of a class from a message.
func Fail(class Class, op, key, format string, args ...any) *Error {
	return &Error{Class: class, Op: op, Key: key, Err: fmt.Errorf(format, args...)}
}

// ClassOf gives the class of the first *Error in err's chain, Other when there is none.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return Other
}

// HintOf gives the first hint in err's chain, "" when there is none.
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
