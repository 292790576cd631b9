// Package s3server runs a real S3 server, versitygw, for tests.
package s3server

import (
	"bytes"
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
}

// Start starts a server, which ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	program := os.Getenv("VERSITYGW")
	if program == "" {
		program = filepath.Join(moduleRoot(t), "build/versitygw/versitygw")
	}
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("no versitygw at %s\nhint: run make versitygw, or name one in $VERSITYGW", program)
	}
	s := &Server{dir: t.TempDir()}
	// Somebody else may take the port between looking and starting.
	for try := 1; ; try++ {
		address := freePort(t)
		if s.run(t, program, address) {
			s.Endpoint = "http://" + address
			return s
		}
		if try == 5 {
			t.Fatalf("versitygw does not serve:\n%s", s.log.String())
		}
	}
}

// run starts the program, and says whether it serves.
func (s *Server) run(t testing.TB, program, address string) bool {
	t.Helper()
	cmd := exec.Command(program, "--port", address, "--keep-alive", "--quiet", "posix", "--sidecar", t.TempDir(), s.dir)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+KeyID, "ROOT_SECRET_KEY="+Secret)
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			return false
		default:
		}
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			return true
		}
	}
	return false
}

// Bucket makes a bucket.
func (s *Server) Bucket(t testing.TB, name string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(s.dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func moduleRoot(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
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
