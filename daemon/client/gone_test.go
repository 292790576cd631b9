package client

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// TestBrokenOff breaks a call off in a way that net/http has no error of its own for. A caller learns that the daemon
// has ended if it has, and only then.
func TestBrokenOff(t *testing.T) {
	for _, dies := range []bool{true, false} {
		proc := exec.Command("sleep", "60")
		if err := proc.Start(); err != nil {
			t.Fatal(err)
		}
		end := func() {
			proc.Process.Kill()
			proc.Wait()
		}
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			c, err := l.Accept()
			if err != nil {
				return
			}
			http.ReadRequest(bufio.NewReader(c))
			c.Write([]byte("half an ans\n"))
			c.Close()
			if dies {
				end()
			}
		}()
		c := &client{http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", l.Addr().String())
			}}}}
		if c.proc, err = wire.OpenProcess(proc.Process.Pid); err != nil {
			t.Fatal(err)
		}
		err = c.call(t.Context(), "restore", struct{}{}, nil, wire.Streams{})
		if err == nil || errors.Is(err, wire.ErrGone) != dies {
			t.Errorf("the daemon died: %v; told: %v", dies, err)
		}
		l.Close()
		<-served
		if !dies {
			end()
		}
		c.proc.Close()
		c.http.CloseIdleConnections()
	}
}
