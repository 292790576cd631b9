package index

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index/fault"
)

// TestDamagedConfig flips each byte of config.json, and loses it: that is noticed wherever it says something else then,
// who only reads goes on, and repair puts it back.
func TestDamagedConfig(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, testOptions(t))
	files := map[string][]byte{"pages-1.img": memory(1, 1<<20)}
	write(t, s, "a", files)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(s.dir, configName)
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	harms := map[string][]byte{"empty": {}, "gone": nil}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if err := os.WriteFile(name, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := LoadConfig(s.dir)
		if err == nil && c != s.config || err != nil &&
			(fault.ClassOf(err) != fault.Corrupt || !strings.Contains(fault.HintOf(err), "gpucr-fs repair")) {
			t.Errorf("byte %d: %+v, %v (hint %q)", i, c, err, fault.HintOf(err))
		}
		if err != nil && (i < 40 || i > len(good)-20) {
			harms["a flipped bit"] = bad
		}
	}
	harms["another pack size"] = bytes.Replace(good, []byte(`"pack_size": 16`), []byte(`"pack_size": 17`), 1)
	for what, bad := range harms {
		t.Run(what, func(t *testing.T) {
			if bytes.Equal(bad, good) {
				t.Fatal("this is no damage")
			}
			if err := os.RemoveAll(name); err != nil {
				t.Fatal(err)
			}
			if bad != nil {
				if err := os.WriteFile(name, bad, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Open(t.Context(), s.dir, testOptions(t)); fault.ClassOf(err) != fault.Corrupt ||
				!strings.Contains(fault.HintOf(err), "gpucr-fs repair") {
				t.Errorf("opened: %v (hint %q)", err, fault.HintOf(err))
			}
			before := everything(t, s.dir)
			o := testOptions(t)
			o.ReadOnly = true
			reader := openTestStore(t, s.dir, o)
			mustHold(t, reader, "a", files)
			if err := reader.Close(); err != nil {
				t.Error(err)
			}
			mustBeAsBefore(t, s.dir, before)
			if _, err := Repair(t.Context(), s.dir, testOptions(t)); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, good) {
				t.Errorf("repaired to %q, %v", b, err)
			}
			mustHold(t, openTestStore(t, s.dir, testOptions(t)), "a", files)
		})
	}
}

// TestConfigCopyThatIsLost goes by config.json alone, and has repair make the copy anew.
func TestConfigCopyThatIsLost(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(s.dir, copyName)
	good, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for what, harm := range map[string]func() error{
		"gone":    func() error { return os.Remove(name) },
		"damaged": func() error { return os.WriteFile(name, append([]byte("0"), good...), 0o600) },
		"folder":  func() error { return os.Mkdir(name, 0o700) },
	} {
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
		if err := harm(); err != nil && what != "gone" {
			t.Fatal(err)
		}
		if c, err := LoadConfig(s.dir); err != nil || c != s.config {
			t.Errorf("%s: %+v, %v", what, c, err)
		}
		if what == "folder" {
			continue // for the user to remove
		}
		if _, err := Repair(t.Context(), s.dir, testOptions(t)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, good) {
			t.Errorf("%s: repaired to %q, %v", what, b, err)
		}
	}
}
