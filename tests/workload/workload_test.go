package workload

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T, args ...string) *Process {
	t.Helper()
	bin, err := Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(bin, t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestVerifiesItself(t *testing.T) {
	p := start(t, "--mem", "16", "--child-mem", "2")
	if err := p.Verified(time.Minute); err != nil {
		t.Fatal(err)
	}
	st, err := p.Status()
	if err != nil {
		t.Fatal(err)
	}
	if st.Bytes < 16<<20 {
		t.Errorf("keeps %d bytes, asked for 16 MiB", st.Bytes)
	}
}

// The tests that lean on the workload are worth nothing if it overlooks damage: change one byte of its memory from
// outside.
func TestFindsDamage(t *testing.T) {
	for _, kind := range []string{"weights", "bf16", "zero", "heap"} {
		t.Run(kind, func(t *testing.T) {
			args := []string{"--mem", "16", "--child-mem", "2", "--churn", "0"}
			for _, k := range []string{"weights", "bf16", "zero", "heap"} {
				parts := "0"
				if k == kind {
					parts = "1"
				}
				args = append(args, "--"+k, parts)
			}
			p := start(t, args...)
			addr, err := largestMapping(p.PID)
			if err != nil {
				t.Fatal(err)
			}
			mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.PID), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer mem.Close()
			b := make([]byte, 1)
			at := addr + 5<<20 + 12345
			if _, err := mem.ReadAt(b, at); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x10
			if _, err := mem.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
			err = p.Verified(time.Minute)
			if err == nil {
				t.Fatal("one changed byte was not found")
			}
			var block int64
			var where string
			if _, scan := fmt.Sscanf(err.Error(), "corrupt at %v in %s", &block, &where); scan != nil ||
				where != kind || at < block || at >= block+1<<20 {
				t.Errorf("got %v, want corrupt in %s at the MiB that holds %#x", err, kind, at)
			}
		})
	}
}

// largestMapping finds where the workload's memory lies; its table of sums may lie before it in the same mapping, and
// is far smaller than 5 MiB.
func largestMapping(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	var best, size int64
	for line := range strings.Lines(string(text)) {
		var from, to int64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil && to-from > size {
			best, size = from, to-from
		}
	}
	return best, nil
}

func TestStartReportsFailure(t *testing.T) {
	bin, err := Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Start(bin, t.TempDir(), "--mem", "none"); err == nil ||
		!strings.Contains(err.Error(), "bad number none") {
		t.Errorf("got %v, want the program's own message", err)
	}
}
