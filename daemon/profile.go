package daemon

import (
	"bytes"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// anew stands before a profile that serves as a record only: the next restore makes a new one.
var anew = []byte("ANEW")

// decodeProfile reads a stored profile; again tells that a new one is to be recorded. p may be nil then.
func decodeProfile(b []byte) (p *prefetch.Profile, again bool, err error) {
	b, again = bytes.CutPrefix(b, anew)
	if again && len(b) == 0 {
		return nil, true, nil
	}
	p, err = prefetch.DecodeProfile(b)
	return p, again, err
}
