package memory_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/buckettest"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	buckettest.Run(t, func(*testing.T) bucket.Bucket { return memory.New(memory.Hooks{}) })
}

// TestHooks: a request that fails has its effect only where the hook says so.
func TestHooks(t *testing.T) {
	lost := bucket.Fail(bucket.Transient, "put", "", "no answer")
	happens := false
	b := memory.New(memory.Hooks{Before: func(c memory.Call) (bool, error) { return happens, lost }})
	for _, happens = range []bool{false, true} {
		if err := b.Delete(t.Context(), "a", bucket.Cond{}); err != lost {
			t.Fatal(err)
		}
		b.Apply(memory.Call{Op: "put", Key: "a", Content: []byte("x")})
		b.Delete(t.Context(), "a", bucket.Cond{})
		if got := b.Content("a") == nil; got != happens {
			t.Errorf("removed %v, want %v", got, happens)
		}
	}
}
