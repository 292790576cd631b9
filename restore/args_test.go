package restore

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseArgs(t *testing.T) {
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"--tcp-established --shell-job", []string{"tcp-established", "shell-job"}},
		{"-j -l -v4", []string{"shell-job", "file-locks", "verbosity=4"}},
		{"-jl", []string{"shell-job", "file-locks"}},
		{"-vvv", []string{"verbosity=3"}},
		{"-v", []string{"verbosity"}},
		{"-v --shell-job", []string{"verbosity", "shell-job"}},
		{"--external mnt[/a]:b --external=dev[1/3]:c", []string{"external=mnt[/a]:b", "external=dev[1/3]:c"}},
		{"-r root -L /lib", []string{"root=" + filepath.Join(cwd, "root"), "libdir=/lib"}},
		{"--manage-cgroups=soft --manage-cgroups", []string{"manage-cgroups=soft", "manage-cgroups"}},
		{"-o name.log", []string{"log-file=" + filepath.Join(cwd, "name.log")}},
		{"-o name.log -W work", []string{"log-file=name.log"}},
		{"-W work -o name.log", []string{"log-file=name.log"}},
		{"-o./name.log", []string{"log-file=" + filepath.Join(cwd, "name.log")}},
		{"-d --restore-detached --lazy-pages", nil},
	} {
		a, err := ParseArgs(strings.Fields(c.in))
		if err != nil || !slices.Equal(a.lines, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.in, a.lines, err, c.want)
		}
	}
	a, err := ParseArgs([]string{"--lsm-profile", `apparmor:a "b`, "-W", "work", "-R", "--inherit-fd", "fd[5]:pipe[7]"})
	if err != nil || a.Work != filepath.Join(cwd, "work") || !a.LeaveRunning ||
		!slices.Equal(a.inherit, []inherited{{5, "pipe[7]"}}) ||
		!slices.Equal(a.lines, []string{`lsm-profile "apparmor:a \"b"`}) {
		t.Errorf("%+v, %v", a, err)
	}
	if err := a.Set("lsm-profile", "other"); err != nil || len(a.lines) != 1 {
		t.Errorf("the user's option was overridden: %q, %v", a.lines, err)
	}
	if err := a.Set("log-file", "/x/y"); err != nil || a.Value("log-file") != "/x/y" {
		t.Errorf("%q, %v", a.lines, err)
	}
	for _, bad := range [][]string{{"word"}, {"-"}, {"-Z"}, {"-D", "x"}, {"--images-dir=x"}, {"-t", "1"}, {"-r"},
		{"--a\nb"}, {"--inherit-fd", "5"}, {"--root", "a b#c"}, {"--=x"}, {"--work-dir"}, {"-S"},
		{"--restore-sibling"}} {
		if a, err := ParseArgs(bad); err == nil {
			t.Errorf("%q was taken: %+v", bad, a)
		}
	}
}

// A value is found again however it was written, and an option can be taken away.
func TestTake(t *testing.T) {
	a, err := ParseArgs([]string{"--pidfile", `/a b "c".pid`, "-v4", "--join-ns", "net:/x", "--join-ns=pid:/y"})
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Values("join-ns"); !slices.Equal(got, []string{"net:/x", "pid:/y"}) {
		t.Errorf("%q", got)
	}
	if got := a.Take("pidfile"); got != `/a b "c".pid` || a.Has("pidfile") {
		t.Errorf("%q of %+v", got, a)
	}
	if !a.Has("verbosity") || len(a.Values("join-ns")) != 2 {
		t.Errorf("others are gone, too: %+v", a)
	}
	if got := a.Take("pidfile"); got != "" {
		t.Errorf("%q is taken a second time", got)
	}
}
