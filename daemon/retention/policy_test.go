package retention

import (
	"testing"
	"time"
)

func TestParseWithin(t *testing.T) {
	for _, c := range []struct {
		s    string
		want time.Duration
	}{
		{"7d12h", 180 * time.Hour}, {"90m", 90 * time.Minute}, {"1w", 168 * time.Hour}, {"30s", 30 * time.Second},
		{"1h1d", 25 * time.Hour}, {"0d", 0}, {"", -1}, {"7", -1}, {"d", -1}, {"7x", -1}, {"-1d", -1}, {"1.5d", -1},
		{"999999999w", -1}, {"1d ", -1}, {"12345678901s", -1},
	} {
		got, err := ParseWithin(c.s)
		if (err != nil) != (c.want < 0) || err == nil && got != c.want {
			t.Errorf("%q: %v, %v", c.s, got, err)
		}
	}
}

func FuzzParseWithin(f *testing.F) {
	f.Add("7d12h")
	f.Add("99999999w99999999w")
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseWithin(s); err == nil && d < 0 {
			t.Errorf("%q is %v", s, d)
		}
	})
}
