package storage

import (
	"io"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// Op is a kind of call.
type Op string

// The calls that a rule is asked about.
const (
	OpOpen      Op = "open"
	OpCreate    Op = "create" // an Open that makes or empties the file
	OpMkdir     Op = "mkdir"
	OpRename    Op = "rename"
	OpRemove    Op = "remove"
	OpList      Op = "list"
	OpStat      Op = "stat"
	OpSyncDir   Op = "sync folder"
	OpFree      Op = "free"
	OpLock      Op = "lock"
	OpRead      Op = "read"
	OpWrite     Op = "write"
	OpSync      Op = "sync"
	OpTruncate  Op = "truncate"
	OpPunch     Op = "punch hole"
	OpAllocate  Op = "allocate"
	OpSize      Op = "size"
	OpAllocated Op = "allocated"
)

// Changes says whether the call changes what a crash can leave.
func (o Op) Changes() bool {
	switch o {
	case OpCreate, OpMkdir, OpRename, OpRemove, OpSyncDir, OpWrite, OpSync, OpTruncate, OpPunch, OpAllocate:
		return true
	}
	return false
}

// Call is one call.
type Call struct {
	Op   Op
	Name string
	Off  int64 // of read, write, punch, allocate, allocated; the size of truncate
	Len  int64
}

// Fault is what happens to a call. The zero value lets it pass.
type Fault struct {
	Kind FaultKind
	Err  error  // default EIO
	Seed uint64 // chooses how much of a Short call is done, what survives a Drop, the bit of Rot
}

// FaultKind is a way to fail.
type FaultKind uint8

const (
	// None: the call passes.
	None FaultKind = iota
	// Fail: nothing is done, and the call fails.
	Fail
	// Late: all is done, and the call fails.
	Late
	// Short: a part of the read or write is done, and the call fails. Other calls: Fail.
	Short
	// Silent: nothing is done, and the call succeeds. Calls that give something: Fail.
	Silent
	// Drop: the sync fails, and what it was to cover is lost whatever later syncs say; half of the time it can't be
	// read any more either. On a file that is not of a Mem, and for other calls: Fail.
	Drop
	// Rot: one bit of what is read is wrong. Other calls: they pass.
	Rot
)

// Faulty asks a rule about every call before it goes on to the storage below. The rule may be called by many
// goroutines at once, and may take a Snapshot of the storage below: the call that it is asked about is not in it.
type Faulty struct {
	Storage
	Rule func(Call) Fault
}

// do runs a call that gives nothing. part does a part of it; nil where it has none.
func (f *Faulty) do(c Call, run func() error, part func(fault Fault) error) error {
	fault := f.Rule(c)
	err := fault.Err
	if err == nil {
		err = unix.EIO
	}
	switch fault.Kind {
	case None, Rot:
		return run()
	case Silent:
		return nil
	case Late:
		if e := run(); e != nil {
			return e
		}
	case Short, Drop:
		if part != nil {
			if e := part(fault); e != nil {
				return e
			}
		}
	}
	return fail(string(c.Op), c.Name, err)
}

// give runs a call that gives something.
func give[T any](f *Faulty, c Call, run func() (T, error)) (out T, err error) {
	fault := f.Rule(c)
	if fault.Kind == None || fault.Kind == Rot || fault.Kind == Drop {
		return run()
	}
	if err = fault.Err; err == nil {
		err = unix.EIO
	}
	return out, fail(string(c.Op), c.Name, err)
}

// Mkdir and the methods below are of Storage.
func (f *Faulty) Mkdir(name string) error {
	return f.do(Call{Op: OpMkdir, Name: name}, func() error { return f.Storage.Mkdir(name) }, nil)
}

func (f *Faulty) Rename(from, to string) error {
	return f.do(Call{Op: OpRename, Name: from}, func() error { return f.Storage.Rename(from, to) }, nil)
}

func (f *Faulty) Remove(name string) error {
	return f.do(Call{Op: OpRemove, Name: name}, func() error { return f.Storage.Remove(name) }, nil)
}

func (f *Faulty) SyncDir(dir string) error {
	return f.do(Call{Op: OpSyncDir, Name: dir}, func() error { return f.Storage.SyncDir(dir) }, nil)
}

func (f *Faulty) List(dir string) ([]string, error) {
	return give(f, Call{Op: OpList, Name: dir}, func() ([]string, error) { return f.Storage.List(dir) })
}

func (f *Faulty) Stat(name string) (Info, error) {
	return give(f, Call{Op: OpStat, Name: name}, func() (Info, error) { return f.Storage.Stat(name) })
}

func (f *Faulty) Free(dir string) (int64, error) {
	return give(f, Call{Op: OpFree, Name: dir}, func() (int64, error) { return f.Storage.Free(dir) })
}

func (f *Faulty) Lock(name, holder string) (io.Closer, error) {
	return give(f, Call{Op: OpLock, Name: name}, func() (io.Closer, error) { return f.Storage.Lock(name, holder) })
}

func (f *Faulty) LockShared(name string) (io.Closer, error) {
	return give(f, Call{Op: OpLock, Name: name}, func() (io.Closer, error) { return f.Storage.LockShared(name) })
}

func (f *Faulty) Open(name string, how How) (File, error) {
	c := Call{Op: OpOpen, Name: name}
	if m := how.mode(); m == Create || m == Replace {
		c.Op = OpCreate
	}
	file, err := give(f, c, func() (File, error) { return f.Storage.Open(name, how) })
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f}, nil
}

type faultyFile struct {
	File
	s *Faulty
}

func (f *faultyFile) call(op Op, off, n int64) Call {
	return Call{Op: op, Name: f.Name(), Off: off, Len: n}
}

// read runs a read that fills bufs, and damages them as the rule says.
func (f *faultyFile) read(bufs [][]byte, off int64, run func() (int, error)) (int, error) {
	n := total(bufs)
	c := f.call(OpRead, off, n)
	fault := f.s.Rule(c)
	switch fault.Kind {
	case None, Drop:
		return run()
	case Rot:
		got, err := run()
		if got > 0 {
			bit := rand.New(rand.NewPCG(fault.Seed, 2)).Int64N(int64(got) * 8)
			for _, b := range bufs {
				if k := int64(len(b)) * 8; bit >= k {
					bit -= k
					continue
				}
				b[bit/8] ^= 1 << (bit % 8)
				break
			}
		}
		return got, err
	}
	err := fault.Err
	if err == nil {
		err = unix.EIO
	}
	return 0, fail(string(OpRead), f.Name(), err)
}

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	return f.read([][]byte{p}, off, func() (int, error) { return f.File.ReadAt(p, off) })
}

func (f *faultyFile) Readv(bufs [][]byte, off int64, past bool) error {
	_, err := f.read(bufs, off, func() (int, error) {
		if err := f.File.Readv(bufs, off, past); err != nil {
			return 0, err
		}
		return int(total(bufs)), nil
	})
	return err
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.Writev([][]byte{p}, off, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *faultyFile) Writev(bufs [][]byte, off int64, past bool) error {
	n := total(bufs)
	write := func() error { return f.File.Writev(bufs, off, past) }
	return f.s.do(f.call(OpWrite, off, n), write, func(fault Fault) error {
		if n == 0 {
			return nil
		}
		var all []byte
		for _, b := range bufs {
			all = append(all, b...)
		}
		_, err := f.File.WriteAt(all[:rand.New(rand.NewPCG(fault.Seed, 3)).Int64N(n)], off)
		return err
	})
}

func (f *faultyFile) Sync() error {
	return f.s.do(f.call(OpSync, 0, 0), f.File.Sync, func(fault Fault) error {
		if d, ok := f.File.(interface {
			drop(seed uint64, forget bool)
		}); ok && fault.Kind == Drop {
			d.drop(fault.Seed, fault.Seed%2 == 0)
		}
		return nil
	})
}

func (f *faultyFile) Truncate(size int64) error {
	return f.s.do(f.call(OpTruncate, size, 0), func() error { return f.File.Truncate(size) }, nil)
}

func (f *faultyFile) Allocate(off, n int64) error {
	return f.s.do(f.call(OpAllocate, off, n), func() error { return f.File.Allocate(off, n) }, nil)
}

func (f *faultyFile) Punch(off, n int64) error {
	return f.s.do(f.call(OpPunch, off, n), func() error { return f.File.Punch(off, n) }, nil)
}

func (f *faultyFile) Size() (int64, error) {
	return give(f.s, f.call(OpSize, 0, 0), f.File.Size)
}

func (f *faultyFile) Allocated(off, n int64) (int64, error) {
	return give(f.s, f.call(OpAllocated, off, n), func() (int64, error) { return f.File.Allocated(off, n) })
}
