// Package keyringtest makes age identities as tests need them. Nothing but tests imports it.
package keyringtest

import (
	"testing"

	"filippo.io/age"
)

// Identity makes a fresh X25519 identity, in the two forms that age-keygen prints.
func Identity(t testing.TB) (identity, recipient string) {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id.String(), id.Recipient().String()
}
