package kfdsim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// ControlSocket is the name, in Options.Dir, of a UNIX socket that serves
// HTTP:
//
//	GET    /state              State
//	GET    /bos?hash=1         []BOInfo
//	GET    /dma, POST /dma     []DMAStats; POST starts a new account
//	POST   /faults             adds the Fault in the body
//	DELETE /faults             removes all; {"struck": N}
//	POST   /rate               {"gpu": ID or 0, "rate": bytes per second}
//	POST   /evict              {"pid": N, "ms": N}; answers when it is over
const ControlSocket = "control.sock"

type control struct {
	srv *http.Server
	wg  sync.WaitGroup
}

func newControl(s *Sim, path string) (*control, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.State(), nil) })
	mux.HandleFunc("GET /bos", func(w http.ResponseWriter, r *http.Request) {
		answer(w, s.BOs(r.URL.Query().Get("hash") != ""), nil)
	})
	mux.HandleFunc("GET /dma", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.DMAStats(false), nil) })
	mux.HandleFunc("POST /dma", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.DMAStats(true), nil) })
	mux.HandleFunc("POST /faults", func(w http.ResponseWriter, r *http.Request) {
		var f Fault
		answer(w, struct{}{}, withBody(r, &f, func() error { return s.Inject(f) }))
	})
	mux.HandleFunc("DELETE /faults", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]int{"struck": s.ClearFaults()}, nil)
	})
	mux.HandleFunc("POST /rate", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			GPU  uint32  `json:"gpu"`
			Rate float64 `json:"rate"`
		}
		answer(w, struct{}{}, withBody(r, &in, func() error { return s.SetDMARate(in.GPU, in.Rate) }))
	})
	mux.HandleFunc("POST /evict", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			PID int `json:"pid"`
			MS  int `json:"ms"`
		}
		answer(w, struct{}{},
			withBody(r, &in, func() error { return s.Evict(in.PID, time.Duration(in.MS)*time.Millisecond) }))
	})
	c := &control{srv: &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}}
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		if err := c.srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("control socket", "err", err)
		}
	}()
	return c, nil
}

func withBody(r *http.Request, v any, fn func() error) error {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		return fmt.Errorf("kfdsim: request body: %w", err)
	}
	return fn()
}

func answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		v = map[string]string{"error": err.Error()}
	}
	json.NewEncoder(w).Encode(v) // a client that went away needs no answer
}

func (c *control) close() {
	c.srv.Close()
	c.wg.Wait()
}
