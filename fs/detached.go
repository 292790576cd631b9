package fs

import (
	"context"
	"errors"
	"os"
	"time"
)

// Root leads into a mount that is attached nowhere: a descriptor to be passed on; its receiver opens it anew through
// /proc/self/fd. The server closes it. nil for a mount that has a mount point.
func (s *Server) Root() *os.File { return s.handle }

// letGo gives a mount up that is attached nowhere. It ends when its users are gone; after timeout its connection is
// aborted, and they get ENOTCONN.
func (s *Server) letGo(ctx context.Context, timeout time.Duration) error {
	dev, err := s.device()
	var c *connection
	if err == nil {
		if c, err = connectionOf(dev); err == nil {
			defer c.close()
		}
	}
	if cerr := s.handle.Close(); errors.Is(err, os.ErrClosed) || errors.Is(cerr, os.ErrClosed) {
		return s.Wait() // another call gives it up
	}
	select {
	case <-s.done:
		return s.err
	case <-time.After(timeout):
	case <-ctx.Done():
	}
	if err != nil {
		return err
	}
	if err := c.abort(); err != nil {
		return err
	}
	return s.Wait()
}
