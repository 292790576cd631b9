package restore

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/tests/cli"
)

// A process dumped on one machine is restored on another, from an encrypted bucket. Neither the bucket nor what the
// machines keep has a page of its memory, or the names of its images.
func TestRestoreFromAnEncryptedBucket(t *testing.T) {
	s := newServer(t)
	address := "s3://checkpoints/team?endpoint=" + s.Endpoint + "&region=us-east-1"
	secret := func(dir string, args ...string) *bench {
		b := &bench{t: t, store: filepath.Join(t.TempDir(), dir)}
		b.run(append([]string{"init", "--remote", address, b.store}, args...)...)
		return b.watched()
	}
	t.Setenv("GPUCR_FS_KEY_COMMAND", "tr A-Za-z N-ZA-Mn-za-m") // stands for a key service
	one, two := secret("one", "--encrypt"), secret("two")
	x := one.dumped("web-7", quiet)
	one.run("sync", one.store)
	x.b = two
	x.mustRestore("--wait")
	x.checks()
	x.mustRestore() // with its profile, from the node's cache
	x.checks()
	for _, b := range []*bench{one, two} {
		if out := b.run("verify", b.store); !strings.Contains(out, "sound") {
			t.Errorf("verify says:\n%s", out)
		}
	}
	if out := one.run("verify", "--remote", one.store); !strings.Contains(out, "sound: 1 checkpoints") {
		t.Errorf("verify --remote says:\n%s", out)
	}

	out := filepath.Join(t.TempDir(), "images")
	two.run("export", two.store, "web-7", out)
	known := [][]byte{[]byte("inventory.img"), []byte("pages-1.img")}
	pages, err := filepath.Glob(filepath.Join(out, "pages-*.img"))
	must(t, err)
	for _, p := range pages {
		b, err := os.ReadFile(p)
		must(t, err)
		for off := 0; off+4096 <= len(b); off += 64 * 4096 {
			if page := b[off : off+4096]; len(bytes.TrimLeft(page[:64], "\x00")) == 64 {
				known = append(known, page[:64])
			}
		}
	}
	if len(known) < 3 {
		t.Fatal("no page is known")
	}
	for _, dir := range []string{s.Dir(), one.store, two.store} {
		files := 0
		must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			b, err := os.ReadFile(p)
			files++
			for _, k := range known {
				if filepath.Base(p) != "daemon.log" && bytes.Contains(b, k) {
					t.Errorf("%s holds %.64q", p, k)
				}
			}
			return err
		}))
		if files < 3 {
			t.Errorf("%s has %d files", dir, files)
		}
	}

	must(t, two.left.Nothing())
	os.Unsetenv("GPUCR_FS_KEY_COMMAND")
	for _, args := range [][]string{
		{"ls", two.store}, {"init", "--remote", address, filepath.Join(t.TempDir(), "three")},
		{"repair", "--remote", address, filepath.Join(t.TempDir(), "four")},
	} {
		if _, err := two.try(args...); cli.Code(err) != 1 || !strings.Contains(err.Error(), "GPUCR_FS_IDENTITY") {
			t.Errorf("%v without a key: %v", args, err)
		}
	}
}
