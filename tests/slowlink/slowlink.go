// Package slowlink puts a network between a client and a server of this machine: each request waits before it gets
// there, and what flows is bounded, on each connection and on all of them together.
package slowlink

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Rates say what a link gives.
type Rates struct {
	Delay      time.Duration // from a request to the first byte of its answer, besides what the server takes
	Connection int64         // bytes a second on each connection and in each direction; 0: no bound
	All        int64         // the same for all connections together
}

// Link is a listener that passes on to one server.
type Link struct {
	listener net.Listener
	server   string
	rates    Rates
	down, up *bucket // of all connections

	requests       atomic.Int64
	received, sent atomic.Int64
	connections    atomic.Int64

	mu    sync.Mutex
	open  map[net.Conn]bool
	ended bool
	wg    sync.WaitGroup
}

// Start listens on a port of this machine. Close ends the link.
func Start(server string, rates Rates) (*Link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	k := &Link{listener: l, server: server, rates: rates, down: newBucket(rates.All), up: newBucket(rates.All),
		open: map[net.Conn]bool{}}
	k.wg.Go(k.accept)
	return k, nil
}

// Address gives HOST:PORT.
func (k *Link) Address() string { return k.listener.Addr().String() }

// Counts are what went over the link so far. Requests are counted where they begin a packet: by the one who waits for
// each answer.
type Counts struct {
	Requests, Connections int64
	Received, Sent        int64 // bytes, by the client
}

// Counts gives what went over the link so far.
func (k *Link) Counts() Counts {
	return Counts{Requests: k.requests.Load(), Connections: k.connections.Load(), Received: k.received.Load(),
		Sent: k.sent.Load()}
}

// Minus gives what came since before.
func (c Counts) Minus(before Counts) Counts {
	return Counts{c.Requests - before.Requests, c.Connections - before.Connections, c.Received - before.Received,
		c.Sent - before.Sent}
}

// Cut breaks all connections.
func (k *Link) Cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.open {
		c.Close()
	}
}

// Close ends the link.
func (k *Link) Close() error {
	k.mu.Lock()
	k.ended = true
	k.mu.Unlock()
	err := k.listener.Close()
	k.Cut()
	k.wg.Wait()
	return err
}

func (k *Link) accept() {
	for {
		c, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.wg.Go(func() { k.serve(c) })
	}
}

// keep notes a connection for Cut, unless the link has ended.
func (k *Link) keep(c net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		c.Close()
		return false
	}
	k.open[c] = true
	return true
}

func (k *Link) drop(c net.Conn) {
	c.Close()
	k.mu.Lock()
	delete(k.open, c)
	k.mu.Unlock()
}

func (k *Link) serve(client net.Conn) {
	defer k.drop(client)
	server, err := net.Dial("tcp", k.server)
	if err != nil || !k.keep(client) {
		return
	}
	defer k.drop(server)
	if !k.keep(server) {
		return
	}
	k.connections.Add(1)
	var both sync.WaitGroup
	both.Go(func() {
		k.pass(server, client, k.rates.Delay, k.up, &k.sent, true)
		server.Close()
	})
	k.pass(client, server, 0, k.down, &k.received, false)
	client.Close()
	server.Close()
	both.Wait()
}

// packet is what was read at once.
type packet struct {
	b  []byte
	at time.Time // when it goes on
}

const packetBytes = 128 << 10

// pass passes bytes on, each after a delay, no faster than the rates allow.
func (k *Link) pass(to io.Writer, from io.Reader, delay time.Duration, all *bucket, count *atomic.Int64, asks bool) {
	own := newBucket(k.rates.Connection)
	packets, free := make(chan packet, 64), make(chan []byte, 64)
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() {
		defer close(packets)
		for {
			var b []byte
			select {
			case b = <-free:
			default:
				b = make([]byte, packetBytes)
			}
			n, err := from.Read(b[:cap(b)])
			if n > 0 {
				if asks && isRequest(b[:n]) {
					k.requests.Add(1)
				}
				packets <- packet{b[:n], time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	})
	var failed error
	for p := range packets {
		if failed != nil {
			continue // the reader ends with its connection, which the caller closes
		}
		time.Sleep(max(time.Until(p.at), own.take(len(p.b)), all.take(len(p.b))))
		_, failed = to.Write(p.b)
		count.Add(int64(len(p.b)))
		select {
		case free <- p.b:
		default:
		}
		if failed != nil {
			if c, ok := from.(net.Conn); ok {
				failed = errors.Join(failed, c.Close())
			}
		}
	}
}

var methods = [][]byte{[]byte("GET /"), []byte("PUT /"), []byte("HEAD /"), []byte("DELETE /"), []byte("POST /")}

func isRequest(b []byte) bool {
	for _, m := range methods {
		if bytes.HasPrefix(b, m) {
			return true
		}
	}
	return false
}

// slack is what may flow at once after a pause: a sleeper wakes late, and makes up for it.
const slack = 4 * time.Millisecond

// bucket bounds a rate.
type bucket struct {
	mu   sync.Mutex
	rate int64
	paid time.Time
}

func newBucket(rate int64) *bucket { return &bucket{rate: rate} }

// take gives how long to wait before n bytes may go on.
func (b *bucket) take(n int) time.Duration {
	if b.rate == 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if early := now.Add(-slack); b.paid.Before(early) {
		b.paid = early
	}
	b.paid = b.paid.Add(time.Duration(float64(n) / float64(b.rate) * float64(time.Second)))
	return b.paid.Sub(now)
}
