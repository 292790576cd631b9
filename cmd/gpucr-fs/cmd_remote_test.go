package main

import (
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
)

// TestUnread: a list of the remote store that lacks something says so.
func TestUnread(t *testing.T) {
	if err := unreadOf("ls", nil); err != nil {
		t.Error(err)
	}
	err := unreadOf("ls", []string{"roots/a: corrupt", "roots/b\n: corrupt"})
	if index.ClassOf(err) != index.Corrupt || index.HintOf(err) == "" {
		t.Fatal(err)
	}
	if text := err.Error(); !strings.Contains(text, "roots/a") || strings.Contains(text, "\n") {
		t.Errorf("it says %q", text)
	}
}
