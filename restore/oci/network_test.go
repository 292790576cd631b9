package oci

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHostNetwork(t *testing.T) {
	dir := t.TempDir()
	if _, err := HostNetwork(dir); err == nil {
		t.Error("no bundle, and no error")
	}
	for text, want := range map[string]bool{
		`{}`: true,
		`{"linux":{"namespaces":[{"type":"pid"},{"type":"mount"}]}}`:                             true,
		`{"linux":{"namespaces":[{"type":"pid"},{"type":"network"}]}}`:                           false,
		`{"linux":{"namespaces":[{"type":"network","path":"/run/netns/web"},{"type":"mount"}]}}`: false,
	} {
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := HostNetwork(dir); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}
