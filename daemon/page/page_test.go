package page

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/index"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreTopFunction("github.com/dgraph-io/ristretto/v2/z.init.0.func1"))
}

// open gives a server of a store of n checkpoints, of which each has a block of its own and one that all have.
func open(t *testing.T, n int) (*Server, *index.Store) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	if err := index.Init(dir, index.InitOptions{}); err != nil {
		t.Fatal(err)
	}
	s, err := index.Open(t.Context(), dir, index.Options{FreeFloor: 1, CacheSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		add(t, s, fmt.Sprintf("c%03d", i))
	}
	log := slog.New(slog.DiscardHandler)
	p := New(Options{
		Env:     func() *service.Env { return &service.Env{Store: s, Log: log} },
		Recent:  NewRecent(),
		Metrics: http.NotFoundHandler(),
		Log:     log,
	})
	t.Cleanup(func() {
		p.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, s
}

func add(t *testing.T, s *index.Store, name string) {
	t.Helper()
	d, err := s.Create(t.Context(), name, index.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"own": name, "same": "same"} {
		f, err := d.Create(file, 0o600)
		if err == nil {
			_, err = f.WriteAt([]byte(strings.Repeat(text+" ", 8192/len(text))), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func ask[T any](t *testing.T, p *Server, method, path, body string, want int) (v T) {
	t.Helper()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	if w.Code != want {
		t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("%s: %v in %s", path, err, w.Body)
	}
	return v
}

func counted(t *testing.T, p *Server) Overview {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if o := ask[Overview](t, p, "GET", "/api/overview", "", 200); o.Usage != nil && !o.Stale {
			return o
		}
		if time.Now().After(end) {
			t.Fatal("the store is never counted")
		}
	}
}

// What the map and the list say adds up to what du says, and what would be free is what then is.
func TestFiguresAddUp(t *testing.T) {
	p, s := open(t, 250)
	// What needs no count is there at once.
	if l := ask[List](t, p, "GET", "/api/checkpoints", "", 200); l.All != 250 || len(l.Rows) != maxRows ||
		l.Rows[0].Logical == 0 {
		t.Errorf("at first: %d of %d rows", len(l.Rows), l.All)
	}
	o := counted(t, p)
	m := ask[Map](t, p, "GET", "/api/map", "", 200)
	if sum := m.All.Only + m.All.Two + m.All.Few + m.All.Many; sum != o.Usage.Stored || m.All.Many == 0 ||
		m.All.Only == 0 {
		t.Errorf("the map has %d bytes (%+v), du %d", sum, m.All, o.Usage.Stored)
	}
	if len(m.Tiles) != maxTiles || m.Rest.Count+len(m.Tiles) != m.All.Count || m.Tiles[0].Many == 0 {
		t.Errorf("%d tiles, %d in the rest, the first is %+v", len(m.Tiles), m.Rest.Count, m.Tiles[0])
	}
	l := ask[List](t, p, "GET", "/api/checkpoints?sort=name&from=200", "", 200)
	if len(l.Rows) != 50 || l.Rows[0].Name != "c200" || l.Rows[0].Held.Only == 0 || !l.Rows[0].Counted {
		t.Errorf("the second page: %d rows, %+v", len(l.Rows), l.Rows[0])
	}
	ids := fmt.Sprintf(`{"ids":[%q,%q]}`, l.Rows[0].ID, l.Rows[1].ID)
	f := ask[Frees](t, p, "POST", "/api/frees", ids, 200)
	if f.Bytes != l.Rows[0].Held.Only+l.Rows[1].Held.Only || f.Refused != "" {
		t.Errorf("%+v would be free", f)
	}
	if err := s.RemoveIDs(t.Context(), []string{l.Rows[0].ID, l.Rows[1].ID}); err != nil {
		t.Fatal(err)
	}
	u, err := s.Usage(t.Context())
	if err != nil || o.Usage.Stored-u.Stored != f.Bytes {
		t.Errorf("%d are free, %d were said (%v)", o.Usage.Stored-u.Stored, f.Bytes, err)
	}
	ask[problem](t, p, "POST", "/api/frees", ids, 404)
	if l := ask[List](t, p, "GET", "/api/checkpoints?q=c20&sort=frees&desc=1", "", 200); l.All != 250 && l.All != 248 ||
		l.Matched > 30 ||
		l.Matched < 8 {
		t.Errorf("found %d of %d", l.Matched, l.All)
	}
}

// All that a group shares is free when the whole group goes, and nothing of it before.
func TestFreesOfAGroup(t *testing.T) {
	p, s := open(t, 3)
	all, err := s.Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u, err := s.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	var alone int64
	for i, c := range all {
		ids = append(ids, c.ID)
		alone += u.Held[i].Only
	}
	b, _ := json.Marshal(map[string][]string{"ids": ids})
	if f := ask[Frees](t, p, "POST", "/api/frees", string(b), 200); f.Bytes != u.Stored || f.Bytes <= alone {
		t.Errorf("%d would be free of %d; %d one by one", f.Bytes, u.Stored, alone)
	}
}

func TestRefusals(t *testing.T) {
	p, _ := open(t, 1)
	for path, want := range map[string]int{"/api/checkpoints?sort=colour": 400,
		"/api/checkpoints?from=-1": 400, "/api/checkpoint/nobody": 404, "/api/memory/nobody": 404} {
		if e := ask[problem](t, p, "GET", path, "", want); e.Error == "" {
			t.Errorf("%s: no reason", path)
		}
	}
	for _, body := range []string{"", "{}", "[]", `{"ids":[]}`, `{"ids":"` + strings.Repeat("x", 2<<20) + `"}`} {
		ask[problem](t, p, "POST", "/api/frees", body, 400)
	}
	for path, want := range map[string]int{"/": 200, "/app.js": 200, "/files": 404,
		"/../server.go": 301, "/nothing": 404} {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != want && !(want == 301 && w.Code >= 300 && w.Code < 400) {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	// Those that go through the store wait for each other, and only some may wait.
	p.heavy <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan int, maxWaiting)
	for range maxWaiting {
		go func() {
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/api/checkpoint/c000", nil))
			waiting <- w.Code
		}()
	}
	for len(p.waiting) < maxWaiting {
		time.Sleep(time.Millisecond)
	}
	ask[problem](t, p, "GET", "/api/checkpoint/c000", "", 503)
	cancel()
	for range maxWaiting {
		<-waiting
	}
	<-p.heavy
	ask[Detail](t, p, "GET", "/api/checkpoint/c000", "", 200)
}

func TestRecent(t *testing.T) {
	r := NewRecent()
	log := slog.New(slog.NewMultiHandler(slog.DiscardHandler, r)).With("restore", 7)
	log.Info("nobody needs this")
	for i := range maxMessages + 5 {
		log.WithGroup("g").Warn(fmt.Sprint("message ", i), "text", strings.Repeat("x", 3*maxText), "seconds", 0.0123456)
	}
	list, count := r.Messages()
	if count != maxMessages+5 || len(list) != maxMessages || list[0].Text != "message 204" || list[0].Number != count {
		t.Fatalf("%d of %d, the last %q", len(list), count, list[0].Text)
	}
	if a := list[0].Attrs; len(a) != 3 || a[0] != (Attr{"restore", "7"}) || len(a[1].Value) > maxText+10 ||
		a[2] != (Attr{"g.seconds", "0.0123"}) {
		t.Errorf("%d attributes, %.60v", len(a), a)
	}
}
