//go:build !linux || !amd64

package park

import (
	"errors"

	"github.com/gpucr/gpucr-fs/park/inject"
)

var errElsewhere = errors.New("rings can be parked on Linux on x86-64 alone")

// Parked is a process without its rings.
type Parked struct{ Note }

// Idle refuses.
func Idle(int, []int) error { return errElsewhere }

// Park refuses.
func Park(int, []int, inject.Options) (*Parked, error) { return nil, errElsewhere }

// Unpark refuses.
func (p *Parked) Unpark() error { return errElsewhere }

// LetGo refuses.
func (p *Parked) LetGo() error { return errElsewhere }

// Wait refuses.
func (n Note) Wait(int) error { return errElsewhere }
