package uffd

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// A call that fails for want of descriptors or of memory has told nothing of what it was asked about. It is made again,
// after lackPause, for up to lackTimeout where somebody has to get an answer in the end.
const (
	lackPause   = 10 * time.Millisecond
	lackTimeout = 30 * time.Second
)

// lacks reports whether a call failed for want of what may be there soon.
func lacks(err error) bool {
	for _, e := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// patiently makes a call until it does not fail for a lack, up to lackTimeout.
func patiently(call func() error) error {
	for late := time.Now().Add(lackTimeout); ; time.Sleep(lackPause) {
		if err := call(); !lacks(err) || time.Now().After(late) {
			return err
		}
	}
}
