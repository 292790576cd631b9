package uffd

import (
	"time"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// A call that fails for want of descriptors or of memory has told nothing of what it was asked about. It is made again,
// after lackPause, for up to lackTimeout where somebody has to get an answer in the end.
const (
	lackPause   = 10 * time.Millisecond
	lackTimeout = 30 * time.Second
)

// patiently makes a call until it does not fail for a lack, up to lackTimeout.
func patiently(call func() error) error {
	for late := time.Now().Add(lackTimeout); ; time.Sleep(lackPause) {
		if err := call(); !prefetch.IsLack(err) || time.Now().After(late) {
			return err
		}
	}
}

// patiently is the same for a memory that cannot be served before: the others do not wait for that.
func (m *memory) patiently(call func() error) error {
	return patiently(func() error {
		err := call()
		if prefetch.IsLack(err) {
			m.lacking.Store(true) // until its next report is read
		}
		return err
	})
}
