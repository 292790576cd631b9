package index

import "context"

func Repair(ctx context.Context, dir string, o Options) (RepairResult, error)      { panic("stub") }
func (s *Store) List(ctx context.Context) ([]Info, error)                          { panic("stub") }
func (s *Store) Usage(ctx context.Context) (Usage, error)                          { panic("stub") }
func (s *Store) Diff(ctx context.Context, a, b string) ([]FileDiff, error)         { panic("stub") }
func (s *Store) GC(ctx context.Context, o GCOptions) (GCResult, error)             { panic("stub") }
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (VerifyResult, error) { panic("stub") }
