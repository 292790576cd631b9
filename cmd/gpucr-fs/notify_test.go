package main

import (
	"net"
	"path/filepath"
	"testing"
)

func TestNotify(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"),
		"@gpucr-fs-test-" + filepath.Base(t.TempDir()) + t.Name()} {
		path := name
		if path[0] == '@' {
			path = "\x00" + path[1:]
		}
		manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
		if err != nil {
			t.Fatal(err)
		}
		defer manager.Close()
		t.Setenv(notifyVar, name)
		if err := notify("READY=1"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, err := manager.Read(buf)
		if got := string(buf[:n]); err != nil || got != "READY=1" {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	t.Setenv(notifyVar, "")
	if err := notify("READY=1"); err != nil {
		t.Error(err)
	}
}
