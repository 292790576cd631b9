package remote_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/keyring"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/config"
)

// TestLostConfig: where checkpoints stand, no other identity is made over them. What a node has of config brings all
// back.
func TestLostConfig(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := newMachine(t, b)
	one.dump(t, "a", map[string][]byte{"f": noise(1, 1<<20)})
	one.push(t, "a")
	must(t, b.Delete(t.Context(), "config", bucket.Cond{}))
	for _, gone := range []string{"", "roots/", "packs/"} { // a part of the rest may be lost too
		part := memory.New(memory.Hooks{})
		for _, key := range b.Keys() {
			if gone == "" || !strings.HasPrefix(key, gone) {
				must(t, part.Apply(memory.Call{Op: "put", Key: key, Content: b.Content(key)}))
			}
		}
		_, fresh, err := remote.Make(t.Context(), part, chunk.DefaultParams(), hasty)
		if fresh || index.ClassOf(err) != index.Corrupt || index.HintOf(err) != config.PutBack {
			t.Errorf("without config and %q: fresh %v, %v", gone, fresh, err)
		}
		if part.Content("config") != nil {
			t.Error("a new config was written")
		}
	}
	copied, err := json.Marshal(one.remote.Config())
	must(t, err)
	must(t, b.Apply(memory.Call{Op: "put", Key: "config", Content: copied}))
	two := newMachine(t, b)
	_, err = two.remote.Pull(t.Context(), two.Store, "a", "a")
	must(t, err)
}

// TestMakeBesideAnother: another machine makes the remote store, and takes a checkpoint there, while this one looks
// what is there. It joins.
func TestMakeBesideAnother(t *testing.T) {
	var before meddling
	b := memory.New(memory.Hooks{Before: before.call})
	before.set(func(c memory.Call) error {
		if c.Op == "list" {
			before.set(nil)
			one := newMachine(t, b)
			one.dump(t, "a", map[string][]byte{"f": noise(1, 1<<20)})
			one.push(t, "a")
		}
		return nil
	})
	_, fresh, err := remote.Make(t.Context(), b, chunk.DefaultParams(), hasty)
	if err != nil || fresh {
		t.Errorf("fresh %v, %v", fresh, err)
	}
}

// TestLostConfigOfAnEncryptedOne makes config anew as the manual says: with the keys of a store, and the checksum that
// the error names.
func TestLostConfigOfAnEncryptedOne(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := secretMachine(t, b, cipher.Hooks{})
	c := one.remote.Config()
	ring, err := c.Ring.Encode()
	must(t, err)
	must(t, b.Delete(t.Context(), "config", bucket.Cond{}))
	c.Ring, c.Revision, c.Sum = nil, "", "" // as in remote.json
	text, err := json.Marshal(c)
	must(t, err)
	var fields map[string]json.RawMessage
	must(t, json.Unmarshal(text, &fields))
	fields["keyring"], fields["crc32c"] = ring, json.RawMessage(`"00000000"`)
	text, err = json.MarshalIndent(fields, "", "  ")
	must(t, err)
	must(t, b.Apply(memory.Call{Op: "put", Key: "config", Content: text}))
	_, err = remote.Open(t.Context(), b, hasty)
	sum := regexp.MustCompile(`its bytes have ([0-9a-f]{8})`).FindStringSubmatch(err.Error())
	if sum == nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("00000000"), []byte(sum[1]), 1)
	must(t, b.Apply(memory.Call{Op: "put", Key: "config", Content: text}))
	s, err := remote.Open(t.Context(), b, hasty)
	must(t, err)
	_, err = s.Config().Ring.Open(t.Context(), keyring.Access{Command: letters})
	must(t, err)
}
