package index

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/storage"
)

// Repair takes a lack of descriptors for no damage of the keyring: its copy may be older, and be for others.
func TestRepairWithoutDescriptors(t *testing.T) {
	dir := newSecretStore(t)
	path := filepath.Join(dir, keyring.FileName)
	older, err := os.ReadFile(filepath.Join(dir, ringCopy))
	must(t, err)
	_, err = ChangeRing(t.Context(), dir, func(r *keyring.Ring) error {
		return r.Add(t.Context(), withLetters, keyring.Wrap{Command: letters})
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, ringCopy), older, 0o600))
	before, err := os.ReadFile(path)
	must(t, err)
	o := secretOptions(t)
	opened := 0
	o.Storage = &storage.Faulty{Storage: storage.Disk{}, Rule: func(c storage.Call) storage.Fault {
		if c.Op == storage.OpOpen && c.Name == path {
			if opened++; opened <= 2 {
				return storage.Fault{Kind: storage.Fail, Err: unix.EMFILE}
			}
		}
		return storage.Fault{}
	}}
	if _, err := Repair(t.Context(), dir, o); err == nil || ClassOf(err) == Corrupt {
		t.Errorf("repair without a descriptor: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the older copy was written over the keyring, %v", err)
	}
}
