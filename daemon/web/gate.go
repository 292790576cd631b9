package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
)

// gate decides who may ask, before any handler sees a request, and knows when none is left.
type gate struct {
	next http.Handler
	page bool // people come here: they are asked for the token

	who atomic.Pointer[admission] // never nil; a request keeps the one that it began with

	open sync.RWMutex // held for reading by each request
	over bool         // guarded by open
}

// admission says what a request must bring.
type admission struct {
	token string // "": none is needed
	hosts bool   // the Host header must name this machine
}

// shut returns when the last request has ended; later ones get nothing.
func (g *gate) shut() {
	g.open.Lock()
	defer g.open.Unlock()
	g.over = true
}

//go:embed login.html
var login []byte

//go:embed login.css
var loginStyle []byte

// loginPath takes the token that a person types in.
const loginPath = "/login"

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.open.RLock()
	defer g.open.RUnlock()
	if g.over {
		return
	}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	h.Set(
		"Content-Security-Policy",
		"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "+
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
	)
	a := g.who.Load()
	if a.hosts && !namesThisMachine(r.Host) {
		http.Error(w, "this server answers to localhost only, not to "+printable(r.Host), http.StatusMisdirectedRequest)
		return
	}
	// A page of another site may make a browser ask, though it cannot read the answer.
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		http.Error(w, "other sites may not ask", http.StatusForbidden)
		return
	}
	switch {
	case a.token == "" || a.known(r):
		g.next.ServeHTTP(w, r)
	case g.page && r.URL.Path == loginPath && r.Method == http.MethodPost:
		g.logIn(w, r, a)
	case g.page && (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.URL.Path == "/":
		g.ask(w, http.StatusUnauthorized)
	case g.page && r.URL.Path == "/login.css":
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		w.Write(loginStyle)
	default:
		h.Set("WWW-Authenticate", `Bearer realm="gpucr-fs"`)
		http.Error(w, "a token is needed", http.StatusUnauthorized)
	}
}

// known tells whether a request brings the token.
func (a *admission) known(r *http.Request) bool {
	if kind, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(kind, "Bearer") &&
		same(token, a.token) {
		return true
	}
	c, err := r.Cookie(a.cookieName())
	return err == nil && same(c.Value, a.mark("cookie"))
}

// mark is something that only who knows the token can make.
func (a *admission) mark(use string) string {
	m := hmac.New(sha256.New, []byte(a.token))
	io.WriteString(m, "gpucr-fs "+use)
	return hex.EncodeToString(m.Sum(nil))
}

// cookieName differs between tokens: cookies do not tell the ports of a host apart.
func (a *admission) cookieName() string { return "gpucr-fs-" + a.mark("name")[:12] }

func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

func (g *gate) ask(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write(login)
}

func (g *gate) logIn(w http.ResponseWriter, r *http.Request, a *admission) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 8<<10))
	form, perr := url.ParseQuery(string(body))
	if err != nil || perr != nil || !same(strings.TrimSpace(form.Get("token")), a.token) {
		g.ask(w, http.StatusForbidden)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: a.cookieName(), Value: a.mark("cookie"), Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode, MaxAge: 30 * 24 * 3600})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// namesThisMachine tells whether a Host header names the loopback: no name that a DNS server could lead here.
func namesThisMachine(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().IsLoopback()
	}
	host = strings.TrimSuffix(host, ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// printable keeps control characters out of an answer.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), 100)])
}
