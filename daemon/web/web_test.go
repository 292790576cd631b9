package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/index"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "correct-horse-battery-staple"

func tokenFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

// serve gives a slot that serves a page which says who it is.
func serve(t *testing.T, at Where) *Slot {
	t.Helper()
	s := New(Options{Name: "page", Flag: "--http", Page: true, Log: slog.New(slog.DiscardHandler),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "the page") })})
	t.Cleanup(s.Close)
	if err := s.Listen(at); err != nil {
		t.Fatal(err)
	}
	return s
}

// ask gives the status and body of an answer to GET /.
func ask(t *testing.T, c *http.Client, at, host string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if host != "" {
		r.Host = host
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if csp := resp.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") {
		t.Errorf("the Content-Security-Policy is %q", csp)
	}
	return resp.StatusCode, string(b)
}

func client(t *testing.T) *http.Client {
	tr := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{
		Transport:     tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// A name that somebody's DNS leads here is refused: a page of the web must not read along.
func TestLoopbackAnswersToItselfOnly(t *testing.T) {
	s := serve(t, Where{Addr: "127.0.0.1:0"})
	_, port, _ := net.SplitHostPort(s.Addr())
	for host, want := range map[string]int{
		s.Addr(): 200, "localhost:" + port: 200, "LOCALHOST": 200, "localhost.": 200,
		"[::1]:" + port: 200, "127.0.0.2": 200, "store.localhost": 200,
		"evil.example:" + port: 421, "evil.example": 421, "localhost.evil.example": 421,
		"127.0.0.1.evil.example": 421, "notlocalhost": 421,
		"10.0.0.7": 421, "0.0.0.0": 421,
	} {
		if got, body := ask(t, client(t), s.Addr(), host); got != want {
			t.Errorf("Host %q: %d %s", host, got, body)
		}
	}
	for site, want := range map[string]int{"cross-site": 403, "same-origin": 200, "none": 200} {
		if got, _ := ask(t, client(t), s.Addr(), "", "Sec-Fetch-Site", site, "Sec-Fetch-Mode", "no-cors"); got != want {
			t.Errorf("a request from %s: %d", site, got)
		}
	}
}

func TestOtherAddressesNeedAToken(t *testing.T) {
	for addr, ok := range map[string]bool{"0.0.0.0:0": false, "[::]:0": false,
		":0": false, "127.0.0.1:0": true, "[::1]:0": true, "localhost:0": true} {
		s := New(Options{
			Name:    "metrics",
			Flag:    "--metrics-addr",
			Handler: http.NotFoundHandler(),
			Log:     slog.New(slog.DiscardHandler),
		})
		err := s.Listen(Where{Addr: addr})
		if (err == nil) != ok ||
			!ok && (index.ClassOf(err) != index.Invalid || !strings.Contains(index.HintOf(err), "--token-file")) {
			t.Errorf("%s: %v", addr, err)
		}
		s.Close()
	}
}

func TestToken(t *testing.T) {
	s := serve(t, Where{Addr: "127.0.0.1:0", TokenFile: tokenFile(t, secret+"\n", 0o600)})
	for header, want := range map[string]int{"": 401, "Bearer " + secret: 200,
		"bearer " + secret: 200, "Bearer wrong": 401, "Bearer ": 401, secret: 401, "Basic " + secret: 401} {
		if got, body := ask(t, client(t), s.Addr(), "store.example", "Authorization", header); got != want ||
			want != 200 && strings.Contains(body, "the page") {
			t.Errorf("%q: %d %s", header, got, body)
		}
	}
	// A person types it in, once.
	jar, _ := cookiejar.New(nil)
	c := client(t)
	c.Jar = jar
	if got, body := ask(t, c, s.Addr(), ""); got != 401 || !strings.Contains(body, `type="password"`) {
		t.Fatalf("%d %s", got, body)
	}
	for _, tc := range []struct {
		token string
		want  int
	}{{"guess", 403}, {secret, 303}} {
		token, want := tc.token, tc.want
		resp, err := c.PostForm("http://"+s.Addr()+"/login", url.Values{"token": {token}})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d", token, resp.StatusCode)
		}
		for _, k := range resp.Cookies() {
			if !k.HttpOnly || k.SameSite != http.SameSiteStrictMode || strings.Contains(k.Value, secret) {
				t.Errorf("the cookie is %+v", k)
			}
		}
	}
	if got, body := ask(t, c, s.Addr(), ""); got != 200 || body != "the page" {
		t.Errorf("with the cookie: %d %s", got, body)
	}
}

// A token that is asked for where something is served already is needed from then on, and replaces another one.
func TestTokenLater(t *testing.T) {
	s := serve(t, Where{Addr: "127.0.0.1:0"})
	changed := tokenFile(t, secret, 0o600)
	const second, third = "second-token-of-the-page", "third-token-of-the-page"
	expect := func(step string, good string, bad ...string) {
		t.Helper()
		if got, body := ask(t, client(t), s.Addr(), "store.example", "Authorization", "Bearer "+good); got != 200 {
			t.Errorf("%s: with the token: %d %s", step, got, body)
		}
		for _, token := range bad {
			if got, body := ask(t, client(t), s.Addr(), "", "Authorization", "Bearer "+token); got != 401 ||
				strings.Contains(body, "the page") {
				t.Errorf("%s: with the token %q: %d %s", step, token, got, body)
			}
		}
	}
	if got, _ := ask(t, client(t), s.Addr(), ""); got != 200 {
		t.Fatalf("before any token: %d", got)
	}
	must := func(at Where) {
		t.Helper()
		if err := s.Listen(at); err != nil {
			t.Fatal(err)
		}
	}
	must(Where{Addr: s.Addr(), TokenFile: changed})
	expect("one later", secret, "", second)
	must(Where{Addr: s.Addr(), TokenFile: tokenFile(t, second, 0o600)})
	expect("another file", second, "", secret)
	must(Where{Addr: "127.0.0.1:0"}) // as it was first asked for, without a token
	expect("none named", second, "", secret)
	if err := os.WriteFile(changed, []byte(third), 0o600); err != nil {
		t.Fatal(err)
	}
	must(Where{Addr: s.Addr(), TokenFile: changed})
	expect("a file with another token by now", third, "", secret, second)
	if err := s.Listen(Where{Addr: s.Addr(), TokenFile: tokenFile(t, "short", 0o600)}); index.ClassOf(err) !=
		index.Invalid {
		t.Errorf("a token file that cannot be used: %v", err)
	}
	expect("a useless file", third, "", secret, second)

	path := filepath.Join(t.TempDir(), "page.sock")
	own := serve(t, Where{Addr: "unix:" + path})
	if err := own.Listen(Where{Addr: "unix:" + path, TokenFile: changed}); err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	tr := &http.Transport{DisableKeepAlives: true, DialContext: dial}
	if got, body := ask(t, &http.Client{Transport: tr}, "page", ""); got != 401 {
		t.Errorf("a socket: %d %s", got, body)
	}
}

func TestTokenFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{
		"short": tokenFile(t, "1234", 0o600), "public": tokenFile(t, secret, 0o644), "empty": tokenFile(t, "", 0o600),
		"missing": "/nowhere/token", "pipe": pipe, "long": tokenFile(t, strings.Repeat("x", 5000), 0o600),
	} {
		s := New(
			Options{Name: "page", Flag: "--http", Handler: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler)},
		)
		if err := s.Listen(Where{Addr: "127.0.0.1:0", TokenFile: file}); index.ClassOf(err) != index.Invalid {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.sock")
	s := serve(t, Where{Addr: "unix:" + path})
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", st.Mode(), err)
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	if got, body := ask(t, &http.Client{Transport: tr}, "page", ""); got != 200 || body != "the page" {
		t.Errorf("%d %s", got, body)
	}
	other := New(
		Options{Name: "page", Flag: "--http", Handler: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler)},
	)
	if err := other.Listen(Where{Addr: "unix:" + path}); err == nil {
		t.Error("two listen at one socket")
	}
	s.Close()
	// What a killed process leaves is replaced, anything else is not.
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if err := other.Listen(Where{Addr: "unix:" + path}); err != nil {
		t.Errorf("a dead socket is in the way: %v", err)
	}
	other.Close()
	file := tokenFile(t, "precious", 0o600)
	for _, path := range []string{file, "relative.sock"} {
		third := New(
			Options{Name: "page", Flag: "--http", Handler: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler)},
		)
		if err := third.Listen(Where{Addr: "unix:" + path}); err == nil {
			t.Errorf("%s became a socket", path)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("a file was lost: %v", err)
	}
}

func TestOnePlace(t *testing.T) {
	s := serve(t, Where{Addr: "127.0.0.1:0"})
	for addr, ok := range map[string]bool{s.Addr(): true, "127.0.0.1:0": true, "127.0.0.1:1": false} {
		if err := s.Listen(Where{Addr: addr}); (err == nil) != ok || !ok && index.ClassOf(err) != index.Exists {
			t.Errorf("again at %s: %v", addr, err)
		}
	}
}

// Close ends requests, also those whose client does not read, and returns only when no handler runs.
func TestCloseWaitsForRequests(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	s := New(Options{
		Name: "page",
		Flag: "--http",
		Log:  slog.New(slog.DiscardHandler),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(began)
			var err error
			for b := make([]byte, 1<<20); err == nil && r.Context().Err() == nil; {
				_, err = w.Write(b)
			}
			time.Sleep(50 * time.Millisecond)
			ended <- errors.Join(err, r.Context().Err())
		}),
	})
	if err := s.Listen(Where{Addr: "127.0.0.1:0"}); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-began
	s.Close()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the request came to an end by itself")
		}
	default:
		t.Error("a handler runs on")
	}
}

// A client that opens connections and says nothing keeps nobody else out for long.
func TestSilentClients(t *testing.T) {
	s := serve(t, Where{Addr: "127.0.0.1:0"})
	for range maxConnections - 1 {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	if got, _ := ask(t, client(t), s.Addr(), ""); got != 200 {
		t.Errorf("beside silent clients: %d", got)
	}
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n", strings.Repeat("x", 40<<10))
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "431") {
		t.Errorf("large headers: %q %v", line, err)
	}
}

// FuzzHost: no name that a DNS server could lead here passes.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"localhost", "127.0.0.1:80", "[::1]:80",
		"evil.example", "localhost.evil", "[::ffff:127.0.0.1]", "::1", "", ":", "[", "127.0.0.1%25lo"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if !namesThisMachine(host) {
			return
		}
		h := host
		if name, _, err := net.SplitHostPort(h); err == nil {
			h = name
		}
		h = strings.ToLower(strings.TrimSuffix(strings.Trim(h, "[]"), "."))
		if ip := net.ParseIP(strings.SplitN(h, "%", 2)[0]); ip != nil && ip.IsLoopback() || h == "localhost" ||
			strings.HasSuffix(h, ".localhost") {
			return
		}
		t.Errorf("%q passes", host)
	})
}
