package remote_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

// TestVerify finds every kind of damage in a bucket, and none in a sound one.
func TestVerify(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := newMachine(t, b)
	shared := noise(1, 5<<20)
	one.dump(t, "a", map[string][]byte{"pages": shared, "text": bytes.Repeat([]byte("text "), 100_000)})
	one.dump(t, "b", map[string][]byte{"pages": append(bytes.Clone(shared), noise(2, 1<<20)...)})
	for _, name := range []string{"a", "b"} {
		_, err := one.remote.Push(t.Context(), one.Store, name)
		must(t, err)
	}
	verify := func(o remote.VerifyOptions) remote.Verified {
		t.Helper()
		o.Holds = one.Holds
		res, err := one.remote.Verify(t.Context(), o)
		must(t, err)
		return res
	}
	all := verify(remote.VerifyOptions{})
	if len(all.Problems) > 0 || all.Checkpoints != 2 || all.Bytes < 6<<20 || all.Bytes > 7<<20 {
		t.Errorf("a sound one: %+v", all)
	}
	if some := verify(remote.VerifyOptions{Subset: 1e-9}); some.Bytes != 0 || some.Chunks != all.Chunks {
		t.Errorf("next to nothing: %+v", some)
	}
	packs := map[string][]byte{} // by their keys; the lists are small
	for _, k := range b.Keys() {
		if content := b.Content(k); strings.HasPrefix(k, "packs/") && len(content) > 1<<20 {
			packs[k] = content
		}
	}
	if len(packs) != 2 {
		t.Fatalf("%d packs", len(packs))
	}
	for key, content := range packs {
		put := func(content []byte) {
			t.Helper()
			must(t, b.Apply(memory.Call{Op: "put", Key: key, Content: content}))
		}
		id := strings.TrimPrefix(key, "packs/")
		flipped := bytes.Clone(content)
		for _, at := range []int{0, len(content) / 2, len(content) - 100, len(content) - 1} {
			flipped[at] ^= 0x40
			put(flipped)
			res := verify(remote.VerifyOptions{})
			if len(res.Problems) == 0 || res.Problems[0].Pack != id {
				t.Errorf("byte %d of %d changed: %+v", at, len(content), res)
			}
			flipped[at] ^= 0x40
		}
		put(content[:len(content)-1])
		if res := verify(remote.VerifyOptions{}); len(res.Problems) == 0 {
			t.Error("cut short, and sound")
		}
		must(t, b.Apply(memory.Call{Op: "delete", Key: key}))
		if res := verify(remote.VerifyOptions{Names: []string{"b"}, Subset: 1e-9}); len(res.Problems) == 0 {
			t.Error("gone, and sound")
		}
		put(content)
	}
	if res := verify(remote.VerifyOptions{}); len(res.Problems) > 0 {
		t.Errorf("put right: %+v", res)
	}
}
