// Package s3server runs a real S3 server, versitygw, for tests.
package s3server

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Credentials that the server takes.
const (
	KeyID  = "tester"
	Secret = "a-secret-for-tests"
)

// Server is a server with its buckets in a folder of its own.
type Server struct {
	Endpoint string // http://HOST:PORT
	dir      string
	log      buffer
	stop     func()
}

// Start starts a server, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := Run(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Dir is the folder that has the buckets.
func (s *Server) Dir() string { return s.dir }

// Run starts a server with its buckets in dir, whose file system must have extended attributes of users. Stop ends it.
//
// versitygw can keep what it knows of an object beside it, with --sidecar. It then writes the ETag before the content
// takes its place, and a read between the two gives the old content with the new ETag: bucket.Probe refuses that.
func Run(dir string) (*Server, error) {
	program, err := find()
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	// Somebody else may take the port between looking and starting.
	for range 5 {
		address, err := freePort()
		if err != nil {
			return nil, err
		}
		serves, err := s.run(program, address)
		if err != nil {
			return nil, err
		}
		if serves {
			s.Endpoint = "http://" + address
			return s, nil
		}
	}
	return nil, fmt.Errorf("versitygw does not serve:\n%s", s.log.String())
}

// find gives the path of the program.
func find() (string, error) {
	program := os.Getenv("VERSITYGW")
	if program == "" {
		out, err := exec.Command("go", "env", "GOMOD").Output()
		if err != nil {
			return "", err
		}
		program = filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "build/versitygw/versitygw")
	}
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("no versitygw at %s\nhint: run make versitygw, or name one in $VERSITYGW", program)
	}
	return program, nil
}

// run starts the program, and says whether it serves.
func (s *Server) run(program, address string) (bool, error) {
	cmd := exec.Command(program, "--port", address, "--keep-alive", "--quiet", "posix", s.dir)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+KeyID, "ROOT_SECRET_KEY="+Secret)
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	if err := cmd.Start(); err != nil {
		return false, err
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	s.stop = func() {
		cmd.Process.Kill()
		<-ended
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			return false, nil
		default:
		}
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			return true, nil
		}
	}
	s.stop()
	return false, nil
}

// Stop ends the server.
func (s *Server) Stop() { s.stop() }

// Bucket makes a bucket.
func (s *Server) Bucket(t testing.TB, name string) {
	t.Helper()
	if err := s.MakeBucket(name); err != nil {
		t.Fatal(err)
	}
}

// MakeBucket makes a bucket.
func (s *Server) MakeBucket(name string) error { return os.Mkdir(filepath.Join(s.dir, name), 0o755) }

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// buffer is a bytes.Buffer for two writers.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
