package preflight

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The name of the file and what lies under it are the process's own: nothing outside its root is read for it.
func TestConfStaysInTheRoot(t *testing.T) {
	host, root := t.TempDir(), t.TempDir()
	secret := filepath.Join(host, "conf")
	for path, text := range map[string]string{secret: "host", filepath.Join(root, "conf"): "own"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"absolute": secret, "own": "/conf",
		"up": "../../../../../../conf", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(root, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"/conf": "own", "conf": "own", "/own": "own", "/up": "own", "../../../../../../../conf": "own",
		"/absolute": "", "../" + filepath.Base(host) + "/conf": "", "/pipe": "", "/loop": "", "/": "", "/missing": "",
	} {
		f, err := openBelow(root, name)
		if err != nil {
			if want != "" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		b, err := io.ReadAll(f)
		if f.Close(); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}
