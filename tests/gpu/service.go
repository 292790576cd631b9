package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
)

// service is an application that is asked over HTTP, by one connection that stays open from the first question on.
type service struct {
	file   string // holds the port, once it listens
	client *http.Client
	asked  bool
}

func newService(file string) *service {
	return &service{file: file, client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}}
}

// say puts a line as app.say does. Its error is not worth another try once the connection was lost.
func (s *service) say(ctx context.Context, line string) (string, error) {
	port, err := os.ReadFile(s.file)
	if err != nil {
		return "", err
	}
	again := false
	ctx = httptrace.WithClientTrace(
		ctx,
		&httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { again = i.Reused }},
	)
	url := fmt.Sprintf("http://127.0.0.1:%s/%s", port, strings.ReplaceAll(line, " ", "/"))
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	r, err := s.client.Do(q)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	if s.asked && !again {
		return "", errConnectionLost
	}
	s.asked = true
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	if r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", r.Status, text)
	}
	return "answer " + string(text) + " 0", nil
}

// errConnectionLost is no matter of waiting.
var errConnectionLost = errors.New("the connection that was open did not come back")
