package check

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		version, least string
		below          bool
	}{
		{"5.17.9", "5.18", true}, {"5.18.0", "5.18", false}, {"5.18-rc1", "5.18", false},
		{"6.8.0-45-generic", "5.18", false}, {"6.2", "6.18", true},
		{"4.1.1", "4.2", true}, {"4.2", "4.2", false}, {"4.2.1", "4.2", false},
		{"10.0", "4.2", false}, {"", "4.2", true}, {"unknown", "4.2", true},
	} {
		if got := below(c.version, c.least); got != c.below {
			t.Errorf("%q below %q: %v", c.version, c.least, got)
		}
	}
}

// What a copied host does not have is not known, and not an error; nothing at all is.
func TestReadHost(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadHost(dir); err == nil {
		t.Error("an empty folder is taken for a host")
	}
	if _, err := ReadHost(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing folder is taken for a host")
	}
	for name, text := range map[string]string{
		"proc/sys/kernel/osrelease": "6.18.1\n",
		"proc/cpuinfo":              "processor\t: 0\nflags\t\t: fpu sse avx\n\nprocessor\t: 1\nflags\t\t: other\n",
		"proc/meminfo":              "MemTotal: 9 kB\nMemAvailable:  100 kB\nSwapFree:  20 kB\nodd line\n",
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h, err := ReadHost(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !h.Copy || h.Kernel != "6.18.1" || !slices.Equal(h.CPUFlags, []string{"fpu", "sse", "avx"}) ||
		h.Available != 120<<10 ||
		h.Topology != nil ||
		h.Driver != nil {
		t.Errorf("read %+v", h)
	}
	if h, err = ReadHost(""); err != nil || h.Copy || h.Kernel == "" || h.Available == 0 {
		t.Errorf("this machine: %+v, %v", h, err)
	}
}
