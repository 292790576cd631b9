package slowlink

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestLink asks over a link for more than it gives in the time, and counts what went over it.
func TestLink(t *testing.T) {
	content := bytes.Repeat([]byte("content "), 1<<18)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(content) }))
	defer server.Close()
	const delay, rate = 20 * time.Millisecond, 20 << 20
	k, err := Start(strings.TrimPrefix(server.URL, "http://"), Rates{Delay: delay, Connection: rate})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range 2 {
		begin := time.Now()
		r, err := client.Get("http://" + k.Address())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < delay {
			t.Errorf("an answer after %v", d)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !bytes.Equal(b, content) {
			t.Errorf("%d bytes came, %v", len(b), err)
		}
		if d, least := time.Since(begin), time.Second*2/20; d < least-2*slack {
			t.Errorf("2 MiB took %v at 20 MiB/s", d)
		}
	}
	c := k.Counts()
	if c.Requests != 2 || c.Connections != 1 || c.Received < 2*int64(len(content)) {
		t.Errorf("counted %+v", c)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}
