package remotes

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

// Commands that stand for key services.
const (
	first  = "tr A-Za-z N-ZA-Mn-za-m"
	second = "case $GPUCR_FS_KEY_ACTION in wrap) tr A-Za-z B-ZAb-za;; *) tr B-ZAb-za A-Za-z;; esac"
)

// TestKeysOfTwoNodes changes the keys of two stores of one remote store, at once and one after the other: the bucket
// has what both have changed, and each store what was changed there.
func TestKeysOfTwoNodes(t *testing.T) {
	server := s3server.Start(t)
	server.Bucket(t, "checkpoints")
	t.Setenv("AWS_ACCESS_KEY_ID", s3server.KeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3server.Secret)
	address := "s3://checkpoints/p?endpoint=" + server.Endpoint + "&region=us-east-1"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	access := keyring.Access{Command: first}
	ring, err := keyring.Make(t.Context(), keyring.Wrap{Command: first})
	must(err)
	var nodes []string
	for range 2 {
		dir := filepath.Join(t.TempDir(), "store")
		f, r, _, err := Make(t.Context(), address, 1<<30, index.DefaultParams(), Keys{Ring: ring, Access: access},
			slog.New(slog.DiscardHandler))
		must(err)
		text, err := json.Marshal(f)
		must(err)
		must(index.Init(dir, index.InitOptions{Ring: r, Beside: map[string][]byte{FileName: text}}))
		nodes = append(nodes, dir)
	}
	add := func(dir, command string) error {
		_, err := ChangeKeys(t.Context(), dir, func(r *keyring.Ring) error {
			return r.Add(t.Context(), access, keyring.Wrap{Command: command})
		})
		return err
	}
	inBucket := func() *keyring.Ring {
		t.Helper()
		b, err := dial(address)
		must(err)
		defer b.Close()
		s, err := remote.Open(t.Context(), b, remote.Options{})
		must(err)
		return s.Config().Ring
	}
	const each = 3
	var all sync.WaitGroup
	for _, dir := range nodes {
		for range each {
			all.Go(func() {
				if err := add(dir, second); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if n := len(inBucket().Keys); n != 1+2*each {
		t.Errorf("of %d keys that two nodes have made, the bucket has %d", 1+2*each, n)
	}
	for _, dir := range nodes {
		if r, err := index.Ring(dir); err != nil || len(r.Keys) != 1+each {
			t.Errorf("%s has %+v, %v", dir, r, err)
		}
	}
	_, err = ChangeKeys(t.Context(), nodes[0], func(r *keyring.Ring) error {
		return r.Rotate(t.Context(), access, keyring.Wrap{Command: second})
	})
	must(err)
	if r := inBucket(); len(r.Keys) != 1 {
		t.Errorf("one node has replaced all keys, and the bucket has %d", len(r.Keys))
	}
	must(add(nodes[1], first))
	for _, command := range []string{first, second} {
		if _, err := inBucket().Open(t.Context(), keyring.Access{Command: command}); err != nil {
			t.Errorf("with %.30s: %v", command, err)
		}
	}
}
