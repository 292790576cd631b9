package remotes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
)

// TestPushesOfAnyNames: what is noted of a push is not lost by one of another name.
func TestPushesOfAnyNames(t *testing.T) {
	p := pushes{filepath.Join(t.TempDir(), "pushes")}
	noted := map[string]string{"web.new": "1", "web.new.new": "2", "web~": "3", "web": "4", "~0123456789abcdef": "5"}
	for range 2 { // also over what is there
		for name, nonce := range noted {
			if err := p.Begun(name, nonce); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Begun("web", noted["web"]); err != nil {
			t.Fatal(err)
		}
		for name, nonce := range noted {
			if left, err := p.Left(name); err != nil || left != nonce {
				t.Errorf("of %s is left %q, %v", name, left, err)
			}
		}
	}
	if files, err := os.ReadDir(p.dir); err != nil || len(files) != len(noted) {
		t.Errorf("%v, %v", files, err)
	}
	if index.ValidName("web"+inNoName) == nil {
		t.Error("a checkpoint may have the name of a file that is being written")
	}
}
