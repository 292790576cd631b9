package index

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// Without descriptors nobody knows what could be given back: that is not 0 bytes.
func TestReclaimableWithoutDescriptors(t *testing.T) { // not beside others: they would have none either
	s := newTestStore(t, testOptions(t))
	write(t, s, "gone", map[string][]byte{"f": memory(1, 1<<20)})
	write(t, s, "stays", map[string][]byte{"f": memory(2, 1<<20)})
	must(t, s.Remove(t.Context(), []string{"gone"}))
	s = reopen(t, s) // the index is in tables
	want, err := s.upkeep.Reclaimable(t.Context())
	must(t, err)
	end := descriptors.Lack(t)
	n, err := s.upkeep.Reclaimable(t.Context())
	end()
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("%d bytes of %d could be given back, %v", n, want, err)
	}
}
