package docs

import (
	"path/filepath"
	"testing"
)

// TestReadme runs the README's commands, its first two lines, which need a store with a checkpoint, last.
func TestReadme(t *testing.T) {
	free(t)
	w := newWalk(t)
	lines := commands(t, "README.md")
	w.page("README.md", append(lines[2:], lines[:2]...), 18)
}

func TestOperations(t *testing.T) {
	free(t)
	w := newWalk(t)
	w.before = map[string]string{
		"mkdir /images/.checkpoints/web-3":         "gpucr-fs mount store/ /images",
		"gpucr-fs restore --copies 4 store/ model": "gpucr-fs dump store/ model -t 4711",
		"gpucr-fs import store/ web-5 /var/lib/dumps/web": "gpucr-fs export store/ web-1 /var/lib/dumps/web\n" +
			"tar -czf checkpoint.tar.gz -C /var/lib/dumps/web .",
		"gpucr-fs export store/ web-5 - | ssh other gpucr-fs import store/ web-5 -": "gpucr-fs init other/",
		"gpucr-fs check --host hosts/gpu7 store/ web-1": "mkdir -p hosts/gpu7 && cp --parents " +
			"/proc/sys/kernel/osrelease /proc/cpuinfo /proc/meminfo hosts/gpu7",
	}
	w.page("docs/operations.md", commands(t, "docs/operations.md"), 50)
}

func TestBuckets(t *testing.T) {
	w := newWalk(t)
	w.bucket()
	w.before = map[string]string{ // the store of another machine
		"gpucr-fs restore store/ web-7": "gpucr-fs init --remote 's3://bucket/team' store/",
	}
	w.page("docs/buckets.md", commands(t, "docs/buckets.md"), 5)
}

func TestEncryption(t *testing.T) {
	w := newWalk(t)
	w.keys()
	w.bucket()
	w.page("docs/encryption.md", commands(t, "docs/encryption.md"), 9)
}

func TestAMD(t *testing.T) {
	w := newWalk(t)
	w.before = map[string]string{
		"gpucr-fs info store/ web-1": "gpucr-fs init store/\ngpucr-fs dump store/ web-1 -t 4711",
	}
	w.page("docs/gpu-amd.md", commands(t, "docs/gpu-amd.md"), 4)
}

func TestNVIDIA(t *testing.T) {
	w := newWalk(t)
	w.page("docs/gpu-nvidia.md", commands(t, "docs/gpu-nvidia.md"), 1)
}

func TestContainersPage(t *testing.T) {
	w := newWalk(t)
	w.page("docs/containers.md", commands(t, "docs/containers.md"), 3)
}

func TestContributing(t *testing.T) {
	w := newWalk(t)
	w.page("CONTRIBUTING.md", commands(t, "CONTRIBUTING.md"), 24)
}

// TestAllPages sees that each page with commands is run by one of the tests above, and that each entry of the list of
// what is not run is a line of its page.
func TestAllPages(t *testing.T) {
	run := map[string]bool{"README.md": true, "CONTRIBUTING.md": true, "docs/operations.md": true,
		"docs/buckets.md": true, "docs/encryption.md": true, "docs/gpu-amd.md": true, "docs/gpu-nvidia.md": true,
		"docs/containers.md": true}
	for _, page := range pages(t) {
		name, _ := filepath.Rel(root, page)
		if !run[name] && plain[name] == "" && len(commands(t, name)) > 0 {
			t.Errorf("%s has commands, and nothing runs them: %q", name, commands(t, name))
		}
	}
	for name, lines := range notRun {
		there := map[string]bool{}
		for _, line := range commands(t, name) {
			there[line] = true
		}
		for line := range lines {
			if !there[line] {
				t.Errorf("%s does not have %q, which is listed as not run", name, line)
			}
		}
	}
}
