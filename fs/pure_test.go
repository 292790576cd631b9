package fs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	r.Read(b)
	return b
}

func TestByProduct(t *testing.T) {
	for _, c := range []struct {
		name        string
		flags, perm uint32
		want        bool
	}{
		{"dump.log", syscall.O_WRONLY, 0o644, true},
		{"restore.log", 0, 0, true},
		{"criu-pid.pid", 0, 0o644, true},
		{"pidfile", 0, 0o644, true},
		{"stats-restore", 0, 0o644, true},
		{"lazy-pages.socket", 0, 0, true},
		{"streamer-capture.sock", 0, 0, true},
		{"out", syscall.O_WRONLY | syscall.O_APPEND | syscall.O_TRUNC, 0o100600, true}, // criu -o out
		{"out", syscall.O_WRONLY | syscall.O_APPEND, 0o644, false},
		{"out", syscall.O_WRONLY, 0o600, false},
		{"stats-dump", syscall.O_WRONLY, 0o644, false},
		{"irmap-cache", syscall.O_WRONLY, 0o644, false},
		{"pages-1.img", syscall.O_WRONLY, 0o644, false},
		{"descriptors.json", syscall.O_WRONLY, 0o600, false},
		{"tmpfs-dev-73.tar.gz.img", syscall.O_WRONLY, 0o644, false},
		{"logs", 0, 0, false},
	} {
		if got := byProduct(c.name, c.flags, c.perm); got != c.want {
			t.Errorf("byProduct(%q, %#o, %#o) = %v", c.name, c.flags, c.perm, got)
		}
	}
}

func TestErrnoOf(t *testing.T) {
	for class, want := range map[index.Class]syscall.Errno{
		index.Other: syscall.EIO, index.NotFound: syscall.ENOENT, index.Exists: syscall.EEXIST,
		index.InUse: syscall.EBUSY, index.Corrupt: syscall.EIO,
		index.NoSpace: syscall.ENOSPC, index.ReadOnly: syscall.EROFS, index.Invalid: syscall.EINVAL,
		index.Unsupported: syscall.EOPNOTSUPP, index.NoStore: syscall.EIO,
	} {
		err := fmt.Errorf("more: %w", &index.Error{Class: class, Err: errors.New("x")})
		if got := errnoOf(err); got != want {
			t.Errorf("%v becomes %v, want %v", class, got, want)
		}
	}
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{{nil, 0}, {fmt.Errorf("x: %w", syscall.EMFILE), syscall.EMFILE},
		{context.Canceled, syscall.EINTR}, {errors.New("x"), syscall.EIO}, {outside("/x"), syscall.EXDEV}} {
		if got := errnoOf(c.err); got != c.want {
			t.Errorf("%v becomes %v, want %v", c.err, got, c.want)
		}
	}
}

func TestOptionsValidate(t *testing.T) {
	for _, o := range []Options{{Checkpoint: "a", New: "b"}, {MaxBackground: -1},
		{MaxBackground: 1 << 16}, {ScratchBytes: -1}} {
		if err := o.Validate(); index.ClassOf(err) != index.Invalid {
			t.Errorf("%+v is accepted: %v", o, err)
		}
	}
	var o Options
	o.setDefaults()
	if err := o.Validate(); err != nil {
		t.Errorf("defaults are refused: %v", err)
	}
}

func TestParentOf(t *testing.T) {
	s := &Server{dir: "/images"}
	s.root = &view{s: s, root: true, img: &image{name: "R"}}
	b := &view{s: s, name: "B"}
	for _, c := range []struct {
		v            *view
		target, want string
	}{
		{b, "../A", "A"}, {b, "../A/", "A"}, {b, "./../A", "A"}, {b, "../../.checkpoints/A", "A"},
		{b, "/images/.checkpoints/A", "A"}, {b, "../..", "R"}, {b, "/images", "R"},
		{b, "../../..", ""}, {b, "A", ""}, {b, "../A/sub", ""}, {b, "/etc", ""}, {b, "/images2/.checkpoints/A", ""},
		{b, "/images/A", ""}, {b, "..", ""}, {b, "../../../images/.checkpoints/A", ""},
		{s.root, ".checkpoints/A", "A"}, {s.root, "./.checkpoints/A/", "A"},
		{s.root, "/images/.checkpoints/A", "A"}, {s.root, "../A", ""}, {s.root, "A", ""},
	} {
		got, err := c.v.parentOf(c.target)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q from %q leads to %q, %v; want %q", c.target, c.v.name, got, err, c.want)
		}
	}
}

func TestHistogram(t *testing.T) {
	for ns := uint64(1); ns < 1<<40; ns += 1 + ns/7 {
		b := bucketOf(ns)
		if end := bucketEnd(b); end < ns || float64(end) > float64(ns)*1.126+1 {
			t.Fatalf("%d ns is in a bucket that ends at %d", ns, end)
		}
		if b > 0 && bucketEnd(b) < bucketEnd(bucketOf(ns-1)) {
			t.Fatalf("buckets are out of order at %d ns", ns)
		}
	}
	var h histogram
	if q := h.quantiles(0.5); q[0] != 0 {
		t.Errorf("an empty histogram has median %v", q[0])
	}
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Microsecond)
	}
	h.add(-1)
	for i, want := range []time.Duration{500 * time.Microsecond, 990 * time.Microsecond, time.Millisecond} {
		got := h.quantiles(0.5, 0.99, 1)[i]
		if got < want*98/100 || got > want*113/100 {
			t.Errorf("quantile %d is %v, want about %v", i, got, want)
		}
	}
}

const mountinfo = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
45 22 0:41 / /mnt/a\040b rw,nosuid,nodev,relatime shared:7 master:2 - fuse.gpucr-fs /srv/my\134store rw,user_id=0
46 22 0:42 / /mnt/a\040b rw - fuse.gpucr-fs /srv/two rw
47 22 0:43 / /x rw - tmpfs none rw
`

func TestMountinfo(t *testing.T) {
	l, err := parseMountinfo(strings.NewReader(mountinfo))
	if err != nil || len(l) != 4 {
		t.Fatalf("%d lines, %v", len(l), err)
	}
	if want := (mountEntry{dev: "0:41", point: "/mnt/a b", fstype: fsType, source: `/srv/my\store`}); l[1] != want {
		t.Errorf("got %+v, want %+v", l[1], want)
	}
	if top, ok := topMount(l, "/mnt/a b"); !ok || top.dev != "0:42" {
		t.Errorf("uppermost mount is %+v", top)
	}
	if _, ok := topMount(l, "/mnt"); ok {
		t.Error("a mount was found where there is none")
	}
	for _, bad := range []string{"x\n", "1 2 3 4 5 - a b\n", "1 2 3:4 / / rw - ext4\n", "1 2 3:4 / / rw ext4 x\n"} {
		if _, err := parseMountinfo(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add(mountinfo)
	f.Add("1 2 3:4 / /\\0 rw - a\\777 b\\04")
	f.Add(" - ")
	f.Fuzz(func(t *testing.T, in string) {
		defer budget.Watch(t, len(in))()
		l, err := parseMountinfo(strings.NewReader(in))
		if err != nil {
			return
		}
		for _, e := range l {
			if e.dev == "" || e.fstype == "" {
				t.Errorf("%q gives an entry without device or type: %+v", in, e)
			}
		}
	})
}

func TestReadTimesSince(t *testing.T) {
	var c counters
	for range 100 {
		c.latency.add(time.Second)
	}
	before := c.snapshot()
	if before.ReadP50 != time.Second || before.ReadMax != time.Second {
		t.Errorf("at first %v, at most %v", before.ReadP50, before.ReadMax)
	}
	if s := before.Since(before); s.ReadP50 != 0 || s.ReadP99 != 0 || s.ReadMax != 0 || len(s.ReadTimes) != 0 {
		t.Errorf("without reads %+v", s)
	}
	for range 98 {
		c.latency.add(time.Millisecond)
	}
	c.latency.add(100 * time.Millisecond)
	c.latency.add(100 * time.Millisecond)
	now := c.snapshot()
	if now.ReadP50 < 100*time.Millisecond {
		t.Errorf("since mounting the median is %v", now.ReadP50)
	}
	near := func(got, want time.Duration) bool { return got >= want && got <= want+want/8+1 }
	s := now.Since(before)
	if !near(s.ReadP50, time.Millisecond) || !near(s.ReadP90, time.Millisecond) ||
		!near(s.ReadP99, 100*time.Millisecond) ||
		!near(s.ReadMax, 100*time.Millisecond) {
		t.Errorf("since then %v, %v, %v, at most %v", s.ReadP50, s.ReadP90, s.ReadP99, s.ReadMax)
	}
}
