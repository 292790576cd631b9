package pidns

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/tests/descriptors"
)

// A process that cannot be looked at is not one outside such a namespace: its dump would hold the wrong pids.
func TestFindUnseen(t *testing.T) {
	n, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer n.End()
	if m, ok, err := Find(n.Init()); m != (Member{n.Init(), 1}) || !ok || err != nil {
		t.Fatalf("the namespace of its init: %v, %v, %v", m, ok, err)
	}
	end := descriptors.Lack(t)
	_, ok, err := Find(n.Init())
	end()
	if ok || !errors.Is(err, unix.EMFILE) {
		t.Errorf("found: %v, %v", ok, err)
	}
}
