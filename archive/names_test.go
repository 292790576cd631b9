package archive

import (
	"strings"
	"testing"
)

func TestCleanName(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{"a", "a"}, {"./a", "a"}, {"a/", "a"}, {"./", "."}, {".", "."},
		{"a//b/./c", "a/b/c"}, {"..a", "..a"}, {"a/...", "a/..."},
		{"", ""}, {"/", ""}, {"/etc/passwd", ""}, {"..", ""}, {"a/../b", ""},
		{"../a", ""}, {"a/..", ""}, {"a\xff", ""}, {"a\x00b", ""},
		{".checkpoints", ""}, {"./.checkpoints/x", ""}, {"a/.checkpoints", "a/.checkpoints"},
		{strings.Repeat("n", 255), strings.Repeat("n", 255)}, {strings.Repeat("n", 256), ""},
		{strings.Repeat("n/", 2048), ""},
	} {
		got, err := cleanName(c.raw)
		if (err != nil) != (c.want == "") || got != c.want {
			t.Errorf("cleanName(%.40q) = %.40q, %v; want %.40q", c.raw, got, err, c.want)
		}
	}
}

func TestCheckTarget(t *testing.T) {
	for _, c := range []struct {
		link, target string
		ok           bool
	}{
		{"l", "a", true}, {"l", "a/b", true}, {"l", "./a", true}, {"l", "..", false},
		{"l", "../a", false}, {"l", "/a", false}, {"l", "", false},
		{"d/l", "../a", true}, {"d/l", "..", true}, {"d/l", "../..", false},
		{"d/e/l", "../../a", true}, {"d/e/l", ".././../../a", false},
		{"l", "d/../a", false}, // d may be a link itself
		{"d/l", "../d/..", false}, {"l", "a\xff", false}, {"l", strings.Repeat("x", 5000), false},
	} {
		if err := checkTarget(c.link, c.target); (err == nil) != c.ok {
			t.Errorf("link %s to %.40q: %v", c.link, c.target, err)
		}
	}
}

func TestParentNames(t *testing.T) {
	for _, c := range []struct{ target, want string }{
		{"../1", "1"}, {"/var/dumps/base/", "base"}, {"../base/checkpoint", "base"}, {"../pre-checkpoint", ".."},
	} {
		if got := parentName(c.target); got != c.want {
			t.Errorf("parentName(%q) = %q, want %q", c.target, got, c.want)
		}
	}
	for _, c := range []struct{ link, images, want string }{
		{"parent", ".", "../base"}, {"parent", "checkpoint", "../base/checkpoint"},
		{"checkpoint/parent", "pre-checkpoint", "../../base/pre-checkpoint"},
	} {
		if got := parentTarget(c.link, "base", c.images); got != c.want {
			t.Errorf("parentTarget(%q, %q) = %q, want %q", c.link, c.images, got, c.want)
		}
	}
}
