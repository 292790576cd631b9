// Package keystest makes indexes as tests need them. Nothing but tests imports it.
package keystest

import (
	"testing"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// Forget deletes keys, as package keys writes them, from the index at dir, which nobody has open.
func Forget(t testing.TB, dir string, keys ...string) {
	t.Helper()
	b, err := badger.Open(badger.DefaultOptions(dir).
		WithLogger(nil).WithCompression(options.None).WithChecksumVerificationMode(options.OnTableAndBlockRead))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Update(func(x *badger.Txn) error {
		for _, key := range keys {
			if err := x.Delete([]byte(key)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}
