package index

import (
	"errors"
	"io/fs"
	"maps"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index/drafts"
	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

func TestLabels(t *testing.T) {
	o := testOptions(t)
	o.Labels = func(fsys fs.FS) map[string]string {
		b, err := fs.ReadFile(fsys, "core-1.img")
		if err != nil {
			return map[string]string{"command": "unknown"}
		}
		return map[string]string{"command": string(b), "host": "from the images", "BAD KEY": "x", "bad": "line\nbreak"}
	}
	s := newTestStore(t, o)
	d, err := s.Create(t.Context(), "a", drafts.CreateOptions{Labels: map[string]string{"host": "node-7"}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Create("core-1.img", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("python train.py"), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Label("a", map[string]string{"team": "vision"}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"host": "node-7", "team": "vision", "command": "python train.py"}
	has := func(s *Store) {
		t.Helper()
		all, err := s.Names(t.Context())
		if err != nil || len(all) != 1 || !maps.Equal(all[0].Labels, want) {
			t.Errorf("listed: %+v, %v", all, err)
		}
	}
	has(s)
	if err := s.Label("a", map[string]string{"team": "", "env": "prod"}); err != nil {
		t.Fatal(err)
	}
	delete(want, "team")
	want["env"] = "prod"
	has(s)
	if err := s.Tag(t.Context(), "a", []string{"golden"}, nil); err != nil {
		t.Fatal(err)
	}
	has(reopen(t, s))
}

func TestBadLabels(t *testing.T) {
	s := newTestStore(t, testOptions(t))
	write(t, s, "a", map[string][]byte{"inventory.img": {1}})
	many := map[string]string{}
	for i := range manifest.MaxLabels + 1 {
		many[strings.Repeat("k", i%60+1)+string(rune('a'+i/60))] = "v"
	}
	for name, labels := range map[string]map[string]string{
		"key":      {"Host": "x"},
		"long key": {strings.Repeat("k", 64): "x"},
		"control":  {"host": "a\x1b[31m"},
		"long":     {"host": strings.Repeat("v", manifest.MaxLabelValue+1)},
		"utf-8":    {"host": "\xff"},
		"many":     many,
	} {
		if err := s.Label("a", labels); fault.ClassOf(err) != fault.Invalid ||
			fault.HintOf(err) == "" && name != "many" {
			t.Errorf("%s: %v", name, err)
		}
	}
	var e *fault.Error
	if err := s.Label("none", map[string]string{"a": "b"}); fault.ClassOf(err) != fault.NotFound ||
		!errors.As(err, &e) {
		t.Errorf("no such checkpoint: %v", err)
	}
}
