package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/gpucr/gpucr-fs/daemon/retention"
)

// bytesValue is a flag that takes a size like 256MiB.
type bytesValue int64

func (v *bytesValue) String() string {
	if *v == 0 {
		return ""
	}
	return size(int64(*v))
}

func (v *bytesValue) Set(s string) error {
	n, err := humanize.ParseBytes(s)
	if err != nil || n > 1<<62 {
		return fmt.Errorf("%q is not a size like 256MiB", s)
	}
	*v = bytesValue(n)
	return nil
}

func (v *bytesValue) Type() string { return "SIZE" }

// floorValue is a size in bytes of which 0 means none. A store takes 0 for its default; one byte is as good as none.
type floorValue int64

func (v *floorValue) String() string { return (*bytesValue)(v).String() }

func (v *floorValue) Set(s string) error {
	err := (*bytesValue)(v).Set(s)
	if err == nil && *v == 0 {
		*v = 1
	}
	return err
}

func (v *floorValue) Type() string { return "SIZE" }

// withinValue is a flag that takes a time like 7d12h.
type withinValue time.Duration

func (v *withinValue) String() string {
	if *v == 0 {
		return ""
	}
	return time.Duration(*v).String()
}

func (v *withinValue) Set(s string) error {
	d, err := retention.ParseWithin(s)
	*v = withinValue(d)
	return err
}

func (v *withinValue) Type() string { return "TIME" }

// shareValue is a flag that takes a share of a whole: 5%, 1/20 or 0.05.
type shareValue float64

func (v *shareValue) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*v)*100, 'g', -1, 64) + "%"
}

func (v *shareValue) Set(s string) error {
	num, den, by := strings.TrimSuffix(s, "%"), "1", 1.0
	switch {
	case strings.HasSuffix(s, "%"):
		by = 100
	case strings.Contains(s, "/"):
		num, den, _ = strings.Cut(s, "/")
	}
	n, err1 := strconv.ParseFloat(num, 64)
	d, err2 := strconv.ParseFloat(den, 64)
	if share := n / d / by; errors.Join(err1, err2) == nil && share > 0 && share <= 1 {
		*v = shareValue(share)
		return nil
	}
	return fmt.Errorf("%q is not a share like 5%% or 1/20", s)
}

func (v *shareValue) Type() string { return "SHARE" }

// size shows a number of bytes.
func size(n int64) string {
	if n < 0 {
		return "-"
	}
	return strings.ReplaceAll(humanize.IBytes(uint64(n)), " ", "")
}

// when shows a moment.
func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

// speed shows bytes per second.
func speed(v float64) string { return size(int64(v)) + "/s" }

// dash shows a missing text.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
