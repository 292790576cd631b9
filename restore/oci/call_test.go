package oci

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		line, command, id, images string
		ours                      bool
	}{
		// podman 4.3, by itself and by conmon.
		{"checkpoint --image-path /b/checkpoint --work-path /b --leave-running --tcp-established 1234", "checkpoint",
			"1234", "/b/checkpoint", true},
		{"--log-format=json --log /l restore --bundle /b --pid-file /p --detach --image-path /i --work-path /b 1234",
			"restore", "1234", "/i", true},
		// containerd's shim.
		{"--root /r --log /l --log-format json checkpoint --image-path /i --work-path /w --empty-ns network c1",
			"checkpoint", "c1", "/i", true},
		{"--systemd-cgroup --debug checkpoint --image-path=/i c1", "checkpoint", "c1", "/i", true},
		// crun takes options behind the name.
		{"checkpoint c1 --image-path /i", "checkpoint", "c1", "/i", true},
		// The runtime's own.
		{"checkpoint --pre-dump --image-path /i c1", "checkpoint", "c1", "/i", false},
		{"checkpoint --parent-path ../x --image-path /i c1", "checkpoint", "c1", "/i", false},
		{"checkpoint --page-server 1.2.3.4:5 --image-path /i c1", "checkpoint", "c1", "/i", false},
		{"checkpoint --lazy-pages --image-path /i c1", "checkpoint", "c1", "/i", false},
		{"checkpoint --help", "checkpoint", "", "", false},
		{"checkpoint c1", "checkpoint", "c1", "", false},
		{"checkpoint --image-path /i c1 c2", "checkpoint", "", "/i", false},
		{"create --bundle /b checkpoint", "create", "", "", false},
		{"exec c1 checkpoint --image-path /i c2", "exec", "", "", false},
		{"--root restore list", "list", "", "", false},
		{"--version", "", "", "", false},
		{"", "", "", "", false},
	} {
		args := strings.Fields(c.line)
		got := Parse(args)
		if got.Command != c.command || got.ID != c.id || got.Value("image-path") != c.images || got.Ours() != c.ours {
			t.Errorf("%q: %q of %q, images %q, ours %v", c.line, got.Command, got.ID, got.Value("image-path"),
				got.Ours())
		}
		if want := slices.Sorted(slices.Values(args)); !slices.Equal(slices.Sorted(slices.Values(got.Args())), want) {
			t.Errorf("%q is written %q", c.line, got.Args())
		}
	}
	c := Parse(strings.Fields("--root /r --log /l restore -d -b /b --image-path=/old --image-path /older c1"))
	if got := strings.Join(c.With("image-path", "/new").With("lazy-pages", "").Args(), " "); got !=
		"--root /r --log /l restore -d -b /b --image-path /new --lazy-pages c1" {
		t.Error(got)
	}
	if got := strings.Join(c.Other("delete", "--force"), " "); got != "--root /r delete --force c1" {
		t.Error(got)
	}
	if !c.Has("detach") || c.Value("bundle") != "/b" {
		t.Error("short options were not understood")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("--root /r checkpoint --image-path /i --work-path= -d c1")
	f.Add("restore - -- --=x -=y --image-path")
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, " ")
		c := Parse(args)
		if n := len(c.Args()); n != len(args) {
			t.Errorf("%q: %d arguments became %d", args, len(args), n)
		}
		if again := Parse(c.Args()); c.Ours() && (!again.Ours() || again.Command != c.Command || again.ID != c.ID) {
			t.Errorf("%q is another call when it is written", args)
		}
	})
}
