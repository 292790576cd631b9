package remote_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
)

// alike gives the roots of two checkpoints whose list objects have the same length.
func alike(t *testing.T, b *memory.Bucket) (x, y catalog.Record) {
	t.Helper()
	found := map[int64]catalog.Record{} // by the length of the list
	for r, err := range catalog.New(b, catalog.Options{}).All(t.Context()) {
		must(t, err)
		if r.State != catalog.Sealed {
			continue
		}
		size := r.Packs[len(r.Packs)-1].Size
		if x, ok := found[size]; ok {
			return x, r
		}
		found[size] = r
	}
	t.Fatal("all lists differ in length")
	return x, y
}

// TestExchangedLists: the list objects of two checkpoints lie in each other's place. Both are whole, and each is
// refused for what it is not, whether the checkpoints have packs of their own or the same ones.
func TestExchangedLists(t *testing.T) {
	kinds := map[string]func(*testing.T, *memory.Bucket) *machine{
		"plain": func(t *testing.T, b *memory.Bucket) *machine { return newMachine(t, b) },
		"encrypted": func(t *testing.T, b *memory.Bucket) *machine {
			return secretMachine(t, b, cipher.Hooks{})
		},
	}
	for kind, machineOn := range kinds {
		for packs, own := range map[string]func(i int) uint64{
			"other packs": func(i int) uint64 { return uint64(100 + i) },
			"same packs":  func(int) uint64 { return 100 },
		} {
			t.Run(kind+", "+packs, func(t *testing.T) {
				b := memory.New(memory.Hooks{})
				one, two := machineOn(t, b), machineOn(t, b)
				all := noise(1, 4<<20)
				one.dump(t, "all", map[string][]byte{"1": all})
				one.push(t, "all")
				files := map[string]map[string][]byte{}
				for i := range 40 {
					name := fmt.Sprintf("web-%d", 10+i)
					files[name] = map[string][]byte{"1": all[:1<<20], "2": noise(own(i), 10_000)}
					one.dump(t, name, files[name])
					one.push(t, name)
				}
				must(t, one.remote.Remove(t.Context(), "all"))
				x, y := alike(t, b)
				verify := func() remote.Verified {
					t.Helper()
					v, err := one.remote.Verify(t.Context(), remote.VerifyOptions{Names: []string{x.Name, y.Name},
						Holds: one.Holds})
					must(t, err)
					return v
				}
				exchange := func() {
					t.Helper()
					px, py := "packs/"+x.Packs[len(x.Packs)-1].ID, "packs/"+y.Packs[len(y.Packs)-1].ID
					lx, ly := bytes.Clone(b.Content(px)), bytes.Clone(b.Content(py))
					must(t, b.Apply(memory.Call{Op: "put", Key: px, Content: ly}))
					must(t, b.Apply(memory.Call{Op: "put", Key: py, Content: lx}))
				}
				if v := verify(); len(v.Problems) > 0 {
					t.Fatalf("before: %+v", v.Problems)
				}

				exchange()
				if v := verify(); len(v.Problems) != 2 || v.Problems[0].Checkpoint != x.Name ||
					v.Problems[1].Checkpoint != y.Name || !strings.Contains(v.Problems[0].Text, "not the list") {
					t.Errorf("verify tells %+v", v.Problems)
				}
				for _, name := range []string{x.Name, y.Name} {
					_, err := two.remote.Pull(t.Context(), two.Store, name, name)
					if index.ClassOf(err) != index.Corrupt || !strings.Contains(index.HintOf(err), "sync") {
						t.Errorf("pulled %s: %v", name, err)
					}
				}
				if names, err := two.Names(t.Context()); err != nil || len(names) > 0 {
					t.Errorf("%v is left, %v", names, err)
				}
				must(t, two.remote.Learn(t.Context(), two.Store)) // of the others
				must(t, one.remote.Follow(t.Context(), one.Store))
				rx, ry := bytes.Clone(b.Content("roots/"+x.Name)), bytes.Clone(b.Content("roots/"+y.Name))
				one.repack(t)
				if !bytes.Equal(rx, b.Content("roots/"+x.Name)) || !bytes.Equal(ry, b.Content("roots/"+y.Name)) {
					t.Error("a run of repacking has changed their roots")
				}

				exchange()
				if v := verify(); len(v.Problems) > 0 {
					t.Errorf("put right: %+v", v.Problems)
				}
				for range 2 {
					one.repack(t)
				}
				one.collect(t)
				for _, name := range []string{x.Name, y.Name} {
					_, err := two.remote.Pull(t.Context(), two.Store, name, "my-"+name)
					must(t, err)
					must(t, two.holds("my-"+name, files[name]))
				}
			})
		}
	}
}
