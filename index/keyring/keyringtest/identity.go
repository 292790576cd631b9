// Package keyringtest makes age identities as tests and benchmarks need them. Nothing else imports it.
package keyringtest

import (
	"testing"

	"filippo.io/age"
)

// Make makes a fresh X25519 identity, in the two forms that age-keygen prints.
func Make() (identity, recipient string, err error) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return "", "", err
	}
	return id.String(), id.Recipient().String(), nil
}

// Identity is Make for tests.
func Identity(t testing.TB) (identity, recipient string) {
	t.Helper()
	identity, recipient, err := Make()
	if err != nil {
		t.Fatal(err)
	}
	return identity, recipient
}
