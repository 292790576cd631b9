package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/index"
)

// reads gives a command that only reads its flag.
func (a *app) reads(c *cobra.Command) {
	c.Flags().BoolVar(&a.index.readOnly, "read-only", false, "only read the store; several readers may do so at once")
}

// readingSession is session for those who change nothing, on a store that need not be writable.
func (a *app) readingSession(ctx context.Context, dir string, f func(*client.Session) error) error {
	s, err := client.ConnectToRead(ctx, dir, a.index.options())
	if err != nil {
		return err
	}
	if why := s.ReadOnly(); why != nil && !a.quiet {
		if e := (*index.Error)(nil); errors.As(why, &e) && e.Err != nil {
			why = e.Err
		}
		a.note("the store is open for reading only: %v", why)
	}
	return errors.Join(f(s), s.Close())
}
