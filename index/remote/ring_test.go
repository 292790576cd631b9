package remote_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// holder is a machine's ring of keys beside that of the bucket.
type holder struct {
	t    *testing.T
	b    bucket.Bucket
	ring *keyring.Ring
}

// change changes the bucket's keys, and then those of the machine.
func (h *holder) change(change func(r *keyring.Ring) error) error {
	h.t.Helper()
	after := h.ring.Clone()
	must(h.t, change(after))
	err := remote.ChangeRing(h.t.Context(), h.b, h.ring, after)
	if err == nil {
		h.ring = after
	}
	return err
}

func (h *holder) add(command string) error {
	return h.change(func(r *keyring.Ring) error {
		return r.Add(h.t.Context(), keyring.Access{Command: letters}, keyring.Wrap{Command: command})
	})
}

// opens says which of the commands open what the bucket holds.
func (h *holder) opens(commands ...string) (which []bool) {
	h.t.Helper()
	s, err := remote.Open(h.t.Context(), h.b, hasty)
	must(h.t, err)
	for _, c := range commands {
		_, err := s.Config().Ring.Open(h.t.Context(), keyring.Access{Command: c})
		which = append(which, err == nil)
	}
	return which
}

const (
	shiftOne = "case $GPUCR_FS_KEY_ACTION in wrap) tr A-Za-z B-ZAb-za;; *) tr B-ZAb-za A-Za-z;; esac"
	shiftTwo = "case $GPUCR_FS_KEY_ACTION in wrap) tr A-Za-z C-ZA-Bc-za-b;; *) tr C-ZA-Bc-za-b A-Za-z;; esac"
)

func newHolders(t *testing.T, b bucket.Bucket) (one, two *holder) {
	t.Helper()
	o := hasty
	var err error
	o.Ring, err = keyring.Make(t.Context(), keyring.Wrap{Command: letters})
	must(t, err)
	_, _, err = remote.Make(t.Context(), b, chunk.DefaultParams(), o)
	must(t, err)
	return &holder{t, b, o.Ring}, &holder{t, b, o.Ring.Clone()}
}

func want(t *testing.T, what string, got []bool, want ...bool) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s: the keys that open it are %v, not %v", what, got, want)
			return
		}
	}
}

// TestKeysOfTwoMachines: what one machine changes in the bucket's keys stays when another changes them, which knows
// nothing of it.
func TestKeysOfTwoMachines(t *testing.T) {
	one, two := newHolders(t, memory.New(memory.Hooks{}))
	must(t, one.add(shiftOne))
	must(t, two.add(shiftTwo))
	want(t, "both have added one", one.opens(letters, shiftOne, shiftTwo), true, true, true)
	must(t, one.change(func(r *keyring.Ring) error { return r.Remove(r.Keys[0].ID) }))
	want(t, "one removed", one.opens(letters, shiftOne, shiftTwo), false, true, true)
	must(t, two.change(func(r *keyring.Ring) error { // it still has the first one
		return r.Rotate(t.Context(), keyring.Access{Command: letters}, keyring.Wrap{Command: shiftTwo})
	}))
	want(t, "all replaced", one.opens(letters, shiftOne, shiftTwo), false, false, true)
	// The machine has two keys, and the bucket only the one that is to go.
	must(t, two.add2(letters, shiftTwo))
	gone := two.ring.Keys[0].ID
	must(t, one.change(func(r *keyring.Ring) error {
		return r.Rotate(t.Context(), keyring.Access{Command: shiftOne}, keyring.Wrap{Command: letters})
	}))
	only := &holder{t, one.b, two.ring.Clone()}
	only.ring.Keys = append(only.ring.Keys, one.ring.Keys...)
	err := only.change(func(r *keyring.Ring) error { return r.Remove(one.ring.Keys[0].ID) })
	if index.ClassOf(err) != index.Invalid {
		t.Errorf("the bucket's last key is removed: %v", err)
	}
	must(t, two.change(func(r *keyring.Ring) error { return r.Remove(gone) }))
	want(t, "what is not there is removed", one.opens(letters, shiftOne, shiftTwo), true, false, false)

	other, _ := newHolders(t, memory.New(memory.Hooks{}))
	other.b = one.b
	if err := other.add(shiftOne); index.ClassOf(err) != index.Invalid {
		t.Errorf("keys of another master key are written: %v", err)
	}
}

// add2 is add by another key.
func (h *holder) add2(command, by string) error {
	return h.change(func(r *keyring.Ring) error {
		return r.Add(h.t.Context(), keyring.Access{Command: by}, keyring.Wrap{Command: command})
	})
}

// meddled is a bucket in which something happens before each of the first writes of its config, and whose answers get
// lost.
type meddled struct {
	bucket.Bucket
	before func(n int64)
	lost   bool
	n      atomic.Int64
}

func (m *meddled) Put(ctx context.Context, key string, c io.ReaderAt, size int64, cond bucket.Cond) (string, error) {
	n := m.n.Add(1)
	if m.before != nil {
		m.before(n)
	}
	etag, err := m.Bucket.Put(ctx, key, c, size, cond)
	if err == nil && m.lost && n == 1 {
		return "", bucket.Fail(bucket.Transient, "put", key, "no answer")
	}
	return etag, err
}

// TestKeysChangedMeanwhile: another machine is quicker, and answers get lost: each change is made once.
func TestKeysChangedMeanwhile(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one, two := newHolders(t, b)
	m := &meddled{Bucket: b, before: func(n int64) {
		if n == 1 {
			must(t, two.add(shiftTwo))
		}
	}}
	one.b = m
	must(t, one.add(shiftOne))
	want(t, "another was quicker", one.opens(letters, shiftOne, shiftTwo), true, true, true)
	if n := m.n.Load(); n != 2 {
		t.Errorf("%d writes, where one was in vain", n)
	}
	m = &meddled{Bucket: b, lost: true}
	one.b = m
	must(t, one.add(shiftOne))
	s, err := remote.Open(t.Context(), b, hasty)
	must(t, err)
	if n, keys := m.n.Load(), len(s.Config().Ring.Keys); n != 1 || keys != 4 {
		t.Errorf("an answer got lost: %d writes, %d keys", n, keys)
	}
}
