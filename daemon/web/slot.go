package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gpucr/gpucr-fs/index"
)

// Times that a client has.
const (
	headerTime = 5 * time.Second
	readTime   = 15 * time.Second
	writeTime  = 90 * time.Second // the handler's work included
	idleTime   = time.Minute
)

// Where says where to serve, and to whom.
type Where struct {
	// Addr is HOST:PORT or unix:PATH.
	Addr string `json:"addr,omitempty"`
	// TokenFile holds the token that every client must know; "" for none.
	TokenFile string `json:"token_file,omitempty"`
}

// Options of a Slot. All are needed.
type Options struct {
	// Name is what is served there, as messages call it; Flag the flag that asks for it.
	Name, Flag string
	// Page tells that people come here with a browser. They are asked for the token.
	Page    bool
	Handler http.Handler
	Log     *slog.Logger
	// Begun, if set, is called when it begins to serve.
	Begun func()
}

// Slot is a place for at most one server. mu guards all below it.
type Slot struct {
	o Options

	mu     sync.Mutex
	asked  Where
	where  string
	gate   *gate
	server *http.Server
	served chan struct{} // closed when the server has ended
}

// New is a Slot that serves nothing yet.
func New(o Options) *Slot { return &Slot{o: o} }

// Listen serves. Again at the same address it serves on, and needs the token of at from then on; where at has none, it
// goes on with what it needed. Class Exists where it serves elsewhere, Invalid for a token file that cannot be used.
func (s *Slot) Listen(at Where) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		if at.Addr == s.asked.Addr || at.Addr == s.where {
			return s.retoken(at.TokenFile)
		}
		return &index.Error{
			Class: index.Exists,
			Op:    s.o.Name,
			Err:   fmt.Errorf("the daemon serves this at %s already", s.where),
			Hint:  "drop " + s.o.Flag,
		}
	}
	token := ""
	if at.TokenFile != "" {
		var err error
		if token, err = readToken(at.TokenFile); err != nil {
			return err
		}
	}
	if err := checkAddr(at.Addr); err != nil {
		return &index.Error{Class: index.Invalid, Op: s.o.Name, Err: err,
			Hint: "give " + s.o.Flag + " a HOST:PORT like 127.0.0.1:9100, or unix:PATH"}
	}
	l, loopback, private, err := listen(at.Addr)
	if err != nil {
		return &index.Error{Op: s.o.Name, Err: err, Hint: "give " + s.o.Flag + " a free HOST:PORT, or unix:PATH"}
	}
	if !loopback && token == "" {
		return errors.Join(&index.Error{Class: index.Invalid, Op: s.o.Name,
			Err:  fmt.Errorf("%s can be reached from other machines, and no token was given", at.Addr),
			Hint: "give --token-file FILE, or a loopback address like 127.0.0.1:9100, or unix:PATH"}, l.Close())
	}
	g := &gate{next: s.o.Handler, page: s.o.Page}
	g.who.Store(&admission{token: token, hosts: loopback && !private && token == ""})
	warn := slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug)
	s.server = &http.Server{
		Handler:           g,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       readTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          warn,
	}
	s.gate, s.asked, s.where, s.served = g, at, shown(at.Addr, l), make(chan struct{})
	if s.o.Begun != nil {
		s.o.Begun()
	}
	server, served := s.server, s.served
	go func() {
		defer close(served)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.o.Log.Error("no longer served", "what", s.o.Name, "error", err)
		}
	}()
	return nil
}

// retoken has the server need the token of a file, if one is named. mu is held.
func (s *Slot) retoken(file string) error {
	if file == "" {
		return nil
	}
	token, err := readToken(file)
	if err != nil || token == s.gate.who.Load().token {
		return err
	}
	s.gate.who.Store(&admission{token: token})
	s.o.Log.Info("another token is needed from now on", "what", s.o.Name, "addr", s.where, "file", file)
	return nil
}

// Addr is where it serves, "" for nowhere.
func (s *Slot) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.where
}

// Close ends the server, and returns when its requests have ended.
func (s *Slot) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		s.server.Close() // which ends the contexts of requests
	}
	<-s.served
	s.gate.shut()
}
