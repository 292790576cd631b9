package keyring

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(p, []byte(text), 0o600))
	return p
}

func person(t *testing.T) (recipient string, a Access) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	must(t, err)
	return id.Recipient().String(), Access{Identity: file(t, "# a comment\n"+id.String()+"\n")}
}

const letters = "tr A-Za-z N-ZA-Mn-za-m"

// TestRing wraps a key for some, adds, removes and rotates: all who may open the store get the same key.
func TestRing(t *testing.T) {
	ann, annHas := person(t)
	bob, bobHas := person(t)
	_, eveHas := person(t)
	pass := Access{Passphrase: file(t, "correct horse\nanother line\n")}
	command := Access{Command: letters}
	r, err := Make(t.Context(), Wrap{Recipients: []string{ann}, Passphrase: pass.Passphrase, Command: letters})
	must(t, err)
	b, err := r.Encode()
	must(t, err)
	r, err = Parse(b)
	must(t, err)
	c, err := r.Open(t.Context(), annHas)
	must(t, err)
	id := c.Sum([]byte("content"))
	opens := func(r *Ring, a Access) bool {
		t.Helper()
		c, err := r.Open(t.Context(), a)
		if err != nil {
			if !errors.Is(err, ErrWrongKey) {
				t.Errorf("%+v: %v", a, err)
			}
			return false
		}
		if c.Sum([]byte("content")) != id {
			t.Errorf("%+v opens another key", a)
		}
		return true
	}
	if !opens(r, pass) || !opens(r, command) || opens(r, bobHas) || opens(r, eveHas) {
		t.Error("not just those open it for whom it was wrapped")
	}
	if _, err := r.Open(t.Context(), Access{}); !errors.Is(err, ErrNoKey) {
		t.Errorf("without anything: %v", err)
	}
	if err := r.Add(t.Context(), eveHas, Wrap{Recipients: []string{bob}}); !errors.Is(err, ErrWrongKey) {
		t.Errorf("a stranger adds a key: %v", err)
	}
	must(t, r.Add(t.Context(), command, Wrap{Recipients: []string{bob}}))
	must(t, r.Remove(r.Keys[0].ID))
	if !opens(r, bobHas) || opens(r, annHas) {
		t.Error("bob was added, ann removed")
	}
	must(t, r.Rotate(t.Context(), bobHas, Wrap{Recipients: []string{ann}}))
	if len(r.Keys) != 1 || !opens(r, annHas) || opens(r, bobHas) || opens(r, pass) {
		t.Errorf("rotated for ann: %d keys", len(r.Keys))
	}
	if err := r.Remove(r.Keys[0].ID); err == nil || !strings.Contains(err.Error(), "last key") {
		t.Errorf("the last key is removed: %v", err)
	}
	if err := r.Remove("none"); err == nil {
		t.Error("a key that is not there is removed")
	}
}

// TestBadWraps refuses what would leave a store that nobody opens, or its key in the open.
func TestBadWraps(t *testing.T) {
	for name, w := range map[string]Wrap{
		"no recipient":       {Recipients: []string{"age1none"}},
		"an identity":        {Recipients: []string{"AGE-SECRET-KEY-1"}},
		"no passphrase file": {Passphrase: "/does/not/exist"},
		"empty passphrase":   {Passphrase: file(t, "\nsecond\n")},
		"the key as it is":   {Command: "cat"},
		"nothing":            {Command: "true"},
		"failure":            {Command: "exit 3"},
	} {
		if _, err := Make(t.Context(), w); err == nil {
			t.Errorf("%s: a ring is made", name)
		}
	}
	for _, text := range []string{"", "{}", `{"format": 1}`, `{"format": 1, "keys": []}`, "null"} {
		if _, err := Parse([]byte(text)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Parse([]byte(`{"format": 2}`)); !errors.Is(err, ErrVersion) {
		t.Errorf("a later version: %v", err)
	}
}
