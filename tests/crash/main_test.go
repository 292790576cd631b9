package crash

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/tests/cli"
)

var (
	strikes = flag.Int("crash.n", 12, "how many times each test kills or damages")
	seed    = flag.Uint64("crash.seed", uint64(time.Now().UnixNano()), "seed of the random choices")

	program cli.Program
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gpucr-crash")
	if err == nil {
		defer os.RemoveAll(dir)
		program, err = cli.Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// source gives the random numbers of one test and tells how to get them again.
func source(t *testing.T) *rand.Rand {
	t.Logf("-crash.n=%d -crash.seed=%d", *strikes, *seed)
	return rand.New(rand.NewPCG(*seed, uint64(len(t.Name()))))
}
