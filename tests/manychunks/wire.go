package main

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"io"
	"net/rpc"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// Request is a request to a bucket of another process.
type Request struct {
	Op, Key, After string
	Off            int64
	Length         int
	Content        []byte
	Absent         bool
	ETag           string
}

// Answer is what came of it.
type Answer struct {
	Class   bucket.Class // of the error
	Problem string       // "" for none
	Content []byte
	Info    bucket.Info
	Page    []bucket.Info
	More    bool
}

// Server serves a bucket to another process.
type Server struct{ b bucket.Bucket }

// Do does a request.
func (s *Server) Do(q Request, a *Answer) error {
	ctx := context.Background()
	cond := bucket.Cond{}
	if q.Absent {
		cond = bucket.IfAbsent
	} else if q.ETag != "" {
		cond = bucket.IfMatch(q.ETag)
	}
	var err error
	switch q.Op {
	case "get":
		b := make([]byte, q.Length)
		var n int
		n, a.Info, err = s.b.Get(ctx, q.Key, b, q.Off)
		a.Content = b[:n]
	case "put":
		a.Info.ETag, err = s.b.Put(ctx, q.Key, bytes.NewReader(q.Content), int64(len(q.Content)), cond)
	case "list":
		a.Page, a.More, err = s.b.List(ctx, q.Key, q.After)
	case "delete":
		err = s.b.Delete(ctx, q.Key, cond)
	case "stat":
		a.Info, err = s.b.Stat(ctx, q.Key)
	}
	if err != nil {
		a.Class, a.Problem = bucket.ClassOf(err), err.Error()
	}
	return nil
}

func init() { gob.Register(bucket.Info{}) }

// distant is a bucket of another process.
type distant struct{ c *rpc.Client }

func (d distant) do(ctx context.Context, q Request) (*Answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var a Answer
	if err := d.c.Call("Server.Do", q, &a); err != nil {
		return nil, fmt.Errorf("the generator: %w", err)
	}
	if a.Problem != "" {
		return &a, bucket.Fail(a.Class, q.Op, q.Key, "%s", a.Problem)
	}
	return &a, nil
}

func (d distant) Get(ctx context.Context, key string, p []byte, off int64) (int, bucket.Info, error) {
	a, err := d.do(ctx, Request{Op: "get", Key: key, Off: off, Length: len(p)})
	if err != nil {
		return 0, bucket.Info{}, err
	}
	return copy(p, a.Content), a.Info, nil
}

func (d distant) Put(ctx context.Context, key string, c io.ReaderAt, size int64, cond bucket.Cond) (string, error) {
	b := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(c, 0, size), b); err != nil {
		return "", err
	}
	a, err := d.do(ctx, Request{Op: "put", Key: key, Content: b, Absent: cond.Absent(), ETag: cond.ETag()})
	if err != nil {
		return "", err
	}
	return a.Info.ETag, nil
}

func (d distant) List(ctx context.Context, prefix, after string) ([]bucket.Info, bool, error) {
	a, err := d.do(ctx, Request{Op: "list", Key: prefix, After: after})
	if err != nil {
		return nil, false, err
	}
	return a.Page, a.More, nil
}

func (d distant) Delete(ctx context.Context, key string, cond bucket.Cond) error {
	_, err := d.do(ctx, Request{Op: "delete", Key: key, ETag: cond.ETag()})
	return err
}

func (d distant) Stat(ctx context.Context, key string) (bucket.Info, error) {
	a, err := d.do(ctx, Request{Op: "stat", Key: key})
	if err != nil {
		return bucket.Info{}, err
	}
	return a.Info, nil
}
