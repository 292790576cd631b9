package measure

import "testing"

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 4}, 4}, {[]float64{4, 1, 2, 100}, 3}} {
		if got := Median(c.in); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestFreshen(t *testing.T) {
	if _, err := Freshen(200 << 20); err != nil {
		t.Error(err)
	}
	if Available() == 0 {
		t.Error("no memory is available")
	}
}
