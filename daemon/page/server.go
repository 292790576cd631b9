package page

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/restores"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/index"
)

//go:embed files
var files embed.FS

// Options of a Server. All are needed.
type Options struct {
	// Env is what operations run in.
	Env func() *service.Env
	// Recent has what the daemon logged.
	Recent *Recent
	// Metrics answers at /metrics.
	Metrics http.Handler
	Version string
	Log     *slog.Logger
}

// Server answers a browser. The server that listens is its caller's, and is closed before it.
type Server struct {
	o        Options
	mux      *http.ServeMux
	keeper   *keeper
	recorder *Recorder
	heavy    chan struct{} // a token for each request that goes through the store
	waiting  chan struct{} // one for each that waits or works
}

// Bounds of requests that go through the store.
const (
	maxHeavy   = 1
	maxWaiting = 8
	heavyTime  = time.Minute
	lightTime  = 20 * time.Second
)

// New makes a Server.
func New(o Options) *Server {
	s := &Server{o: o, mux: http.NewServeMux(), keeper: newKeeper(o.Env, o.Log), recorder: NewRecorder(),
		heavy: make(chan struct{}, maxHeavy), waiting: make(chan struct{}, maxWaiting)}
	root, err := fs.Sub(files, "files")
	if err != nil {
		panic(err) // the folder is in this program
	}
	static := http.FileServerFS(root)
	s.mux.Handle("GET /", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			if _, err := fs.Stat(root, r.URL.Path[1:]); err != nil {
				http.NotFound(w, r)
				return
			}
		}
		static.ServeHTTP(w, r)
	}))
	s.mux.Handle("GET /metrics", o.Metrics)
	s.handle("GET /api/overview", false, s.overview)
	s.handle("GET /api/checkpoints", false, s.checkpoints)
	s.handle("GET /api/map", false, s.tiles)
	s.handle("GET /api/restores", false, s.restores)
	s.handle("GET /api/checkpoint/{id}", true, s.checkpoint)
	s.handle("GET /api/memory/{id}", true, s.memory)
	s.handle("POST /api/frees", true, s.frees)
	return s
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Start is to be called when somebody may look, with the restores in progress.
func (s *Server) Start(list []*restores.Restore) { s.recorder.Start(list) }

// Began is told of each restore that begins.
func (s *Server) Began(r *restores.Restore) { s.recorder.Began(r) }

// Close ends what goes on in the background. No request is under way.
func (s *Server) Close() {
	s.keeper.close()
	s.recorder.Close()
}

// problem is an answer that says why there is no other.
type problem struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
}

var errBusy = errors.New("too many ask at once")

// handle has f answer a pattern, in JSON that is whole before the first byte of it is written.
func (s *Server) handle(pattern string, heavy bool, f func(ctx context.Context, r *http.Request) (any, error)) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		limit := lightTime
		if heavy {
			limit = heavyTime
		}
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		res, err := s.answer(ctx, heavy, r, f)
		status := http.StatusOK
		if err != nil {
			status = statusOf(err)
			if status >= 500 {
				s.o.Log.Debug("the page got no answer", "path", r.URL.Path, "error", err)
			}
			res = problem{err.Error(), index.HintOf(err)}
		}
		b, err := json.Marshal(res)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(b)
	})
}

func (s *Server) answer(
	ctx context.Context,
	heavy bool,
	r *http.Request,
	f func(ctx context.Context, r *http.Request) (any, error),
) (any, error) {
	if !heavy {
		return f(ctx, r)
	}
	select {
	case s.waiting <- struct{}{}:
		defer func() { <-s.waiting }()
	default:
		return nil, errBusy
	}
	select {
	case s.heavy <- struct{}{}:
		defer func() { <-s.heavy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return f(ctx, r)
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, errBusy), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	case index.ClassOf(err) == index.NotFound:
		return http.StatusNotFound
	case index.ClassOf(err) == index.Invalid:
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// Overview is the state of the store and its daemon.
type Overview struct {
	Store    string    `json:"store"`
	ReadOnly bool      `json:"read_only"`
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	Now      time.Time `json:"now"`

	Checkpoints int       `json:"checkpoints"`
	Writing     int       `json:"writing"`    // checkpoints that are being written
	Incomplete  []string  `json:"incomplete"` // some of those whose writer died
	Incompletes int       `json:"incompletes"`
	Damaged     []Damaged `json:"damaged"` // some of the damaged
	Damages     int       `json:"damages"`

	// Usage is du's, without its checkpoints; nil before the first count.
	Usage     *service.UsageResult `json:"usage"`
	Counting  bool                 `json:"counting"`
	Stale     bool                 `json:"stale"`
	CountedAt time.Time            `json:"counted_at,omitzero"`
	Problem   string               `json:"problem,omitempty"` // why it could not be counted

	Stats    service.StatsResult `json:"stats"`
	Messages []Message           `json:"messages"`
	Logged   int64               `json:"logged"` // warnings and errors in all
}

// Damaged is a checkpoint with damage.
type Damaged struct {
	Name   string `json:"name"`
	ID     string `json:"id"`
	Damage string `json:"damage"`
}

// maxNamed is how many checkpoints an overview names of each kind.
const maxNamed = 20

func (s *Server) overview(ctx context.Context, _ *http.Request) (any, error) {
	b, err := s.keeper.books(ctx)
	if err != nil {
		return nil, err
	}
	env := s.o.Env()
	o := Overview{
		Store:       env.Store.Dir(),
		ReadOnly:    env.Store.ReadOnly(),
		Version:     s.o.Version,
		PID:         os.Getpid(),
		Now:         time.Now().UTC(),
		Checkpoints: len(b.Rows),
		Counting:    b.Counting,
		Stale:       b.Stale,
		CountedAt:   b.CountedAt,
		Problem:     b.Problem,
		Incomplete:  []string{},
		Damaged:     []Damaged{},
	}
	for i := range b.Rows {
		switch r := &b.Rows[i]; {
		case r.State == index.Writing:
			o.Writing++
		case r.State == index.Incomplete:
			if o.Incompletes++; o.Incompletes <= maxNamed {
				o.Incomplete = append(o.Incomplete, r.Name)
			}
		case r.Damage != "":
			if o.Damages++; o.Damages <= maxNamed {
				o.Damaged = append(o.Damaged, Damaged{r.Name, r.ID, cut(r.Damage)})
			}
		}
	}
	if b.Usage != nil {
		u := *b.Usage
		u.Checkpoints, u.Held = []index.Info{}, nil
		o.Usage = &u
	}
	if o.Stats, err = service.LiveStats.Do(ctx, here{env}, service.StatsRequest{}, env.Streams); err != nil {
		return nil, err
	}
	o.Messages, o.Logged = s.o.Recent.Messages()
	return o, nil
}

// Restores are those in progress, and the last ones that are over.
type Restores struct {
	Now      time.Time  `json:"now"`
	Ended    int64      `json:"ended"` // how many are over; with this as "known" they are left out
	Restores []Progress `json:"restores"`
}

func (s *Server) restores(_ context.Context, r *http.Request) (any, error) {
	known, err := strconv.ParseInt(defaultTo(r.URL.Query().Get("known"), "-1"), 10, 64)
	if err != nil {
		return nil, invalid("known must be a number")
	}
	list, ended := s.recorder.Restores(known)
	return Restores{time.Now().UTC(), ended, list}, nil
}

func invalid(format string, a ...any) error {
	return &index.Error{Class: index.Invalid, Op: "page", Err: fmt.Errorf(format, a...)}
}
