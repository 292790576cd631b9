package runc

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// server listens on a port of the machine, which it writes to a file, and closes each connection first.
const server = `package main

import (
	"context"
	"net"
	"os"
	"syscall"
)

func main() {
	plain := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0)
		})
	}}
	plain.SetMultipathTCP(false) // which criu does not dump
	l, err := plain.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile("/status/new", []byte(l.Addr().String()), 0o600); err != nil {
		panic(err)
	}
	os.Rename("/status/new", "/status/address")
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		c.Write([]byte("served"))
		c.Close()
	}
}
`

// TestPortOfContainer: a container in the machine's network is restored although a connection that it had closed first
// keeps its port in TIME_WAIT.
func TestPortOfContainer(t *testing.T) {
	s := newStored(t)
	source := filepath.Join(t.TempDir(), "server.go")
	must(t, os.WriteFile(source, []byte(server), 0o600))
	build := exec.Command("go", "build", "-o", filepath.Join(s.bundle, "rootfs", "bin", "server"), source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	file := filepath.Join(s.bundle, "config.json")
	text, err := os.ReadFile(file)
	must(t, err)
	var spec map[string]any
	must(t, json.Unmarshal(text, &spec))
	spec["process"].(map[string]any)["args"] = []string{"/bin/server"}
	kinds := []any{}
	for _, n := range spec["linux"].(map[string]any)["namespaces"].([]any) {
		if n.(map[string]any)["type"] != "network" {
			kinds = append(kinds, n)
		}
	}
	spec["linux"].(map[string]any)["namespaces"] = kinds
	text, err = json.Marshal(spec)
	must(t, err)
	must(t, os.WriteFile(file, text, 0o644))
	must(t, s.runc("run", "-d", "--bundle", s.bundle, s.name))
	var addr []byte
	for end := time.Now().Add(limit); len(addr) == 0; time.Sleep(time.Millisecond) {
		addr, _ = os.ReadFile(filepath.Join(s.bundle, "rootfs", "status", "address"))
		if len(addr) == 0 && time.Now().After(end) {
			t.Fatal("the container does not listen")
		}
	}
	serves := func() {
		t.Helper()
		c, err := net.DialTimeout("tcp", string(addr), limit)
		must(t, err)
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(limit)))
		if got, err := io.ReadAll(c); err != nil || string(got) != "served" {
			t.Errorf("served %q: %v", got, err)
		}
	}
	serves()
	images := filepath.Join(s.dir, "images")
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	must(t, s.runc("delete", "-f", s.name))
	must(t, s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name))
	serves()
	s.quiet()
	must(t, s.runc("delete", "-f", s.name))
	must(t, s.left.Nothing())
}
