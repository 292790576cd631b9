package kfdsim

import (
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// A dmabuf is a FUSE file too. FUSE cannot install a descriptor in the caller,
// so requests that return one return a token instead, a number no descriptor
// has; kfdsim.h turns it into a descriptor: claim the file handle, open it with
// open_by_handle_at on the device file (no path is needed, so this works in any
// mount namespace), drop the token.

// dmabuf is the exported form of a BO. Guarded by Sim.mu.
type dmabuf struct {
	id    uint64
	bo    *bo // held
	opens int
}

// token keeps a dmabuf alive until its caller has opened it.
type token struct {
	fd     int
	by     *openFile
	handle unix.FileHandle
}

// TokenBase is the first number that stands for a descriptor still to be
// opened.
const TokenBase = 0x40000000

var lastToken atomic.Uint32

// exportBO returns a token for the dmabuf of a BO, made on first export. The
// caller holds the BO over the call.
func (s *Sim) exportBO(b *bo, by *openFile) (uint32, syscall.Errno) {
	s.mu.Lock()
	d := b.dmabuf
	if d == nil {
		s.lastBuf++
		d = &dmabuf{id: s.lastBuf, bo: b.get()}
		b.dmabuf = d
		s.dmabufs[d.id] = d
	}
	d.opens++ // so that it stays over the open below
	s.unlock()
	defer s.closeDmabuf(d)

	path := filepath.Join(s.DevDir(), "dmabuf", strconv.FormatUint(d.id, 10))
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, s.refuse(syscall.ENFILE, "open dmabuf: "+err.Error())
	}
	handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		unix.Close(fd)
		return 0, s.refuse(syscall.ENFILE, "handle of dmabuf: "+err.Error())
	}
	n := TokenBase | lastToken.Add(1)&(TokenBase-1)
	s.mu.Lock()
	s.tokens[n] = &token{fd: fd, by: by, handle: handle}
	s.unlock()
	return n, 0
}

func (s *Sim) openDmabuf(d *dmabuf) syscall.Errno {
	s.mu.Lock()
	defer s.unlock()
	if d.opens == 0 {
		return syscall.ENXIO // released between lookup and open
	}
	d.opens++
	return 0
}

func (s *Sim) closeDmabuf(d *dmabuf) {
	s.mu.Lock()
	defer s.unlock()
	s.putDmabuf(d)
}

// putDmabuf drops a hold. Preconditions: Sim.mu is held.
func (s *Sim) putDmabuf(d *dmabuf) {
	if d.opens--; d.opens == 0 {
		delete(s.dmabufs, d.id)
		d.bo.dmabuf = nil
		s.putBO(d.bo)
	}
}

// dropTokens closes what by asked for and nobody claimed.
func (s *Sim) dropTokens(by *openFile) {
	var fds []int
	s.mu.Lock()
	for n, t := range s.tokens {
		if t.by == by {
			fds = append(fds, t.fd)
			delete(s.tokens, n)
		}
	}
	s.unlock()
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// claimArgs belongs to iocClaim (struct kfdsim_claim in kfdsim.h).
type claimArgs struct {
	Token  uint32
	Bytes  uint32
	Type   int32
	Handle [36]byte
}

func (f *openFile) claim(in, out []byte) syscall.Errno {
	var args claimArgs
	if abi.Decode(in, &args) != nil {
		return syscall.EINVAL
	}
	f.sim.mu.Lock()
	defer f.sim.unlock()
	t := f.sim.tokens[args.Token]
	if t == nil {
		return syscall.ENOENT
	}
	b := t.handle.Bytes()
	args.Bytes, args.Type = uint32(len(b)), t.handle.Type()
	if copy(args.Handle[:], b) < len(b) {
		return syscall.EOVERFLOW
	}
	return reply(out, &args)
}

func (f *openFile) drop(in []byte) syscall.Errno {
	var args struct{ Token uint32 }
	if abi.Decode(in, &args) != nil {
		return syscall.EINVAL
	}
	fd := -1
	f.sim.mu.Lock()
	if t := f.sim.tokens[args.Token]; t != nil {
		fd = t.fd
		delete(f.sim.tokens, args.Token)
	}
	f.sim.unlock()
	if fd < 0 {
		return syscall.ENOENT
	}
	unix.Close(fd)
	return 0
}

// withFD calls use with a duplicate of a descriptor of the caller that is a file
// of this simulator, and with its inode number. errno is EBADF when it is not one.
func (s *Sim) withFD(c caller, fd int, use func(dup int, ino uint64) syscall.Errno) syscall.Errno {
	dup, err := s.threads.getFD(c.tid, fd)
	if err != nil {
		return s.refuse(syscall.EBADF, err.Error())
	}
	defer unix.Close(dup)
	var st unix.Stat_t
	if err := unix.Fstat(dup, &st); err != nil || st.Ino&inoTagMask != inoTag {
		return s.refuse(syscall.EBADF, "descriptor is not a device file of the simulator", "fd", fd)
	}
	if st.Dev != s.dev.Load() {
		return s.refuse(syscall.EBADF, "descriptor belongs to another simulator", "fd", fd)
	}
	return use(dup, st.Ino)
}

// fileOf finds the open file behind a descriptor of the caller. errno is EBADF
// when it is not one of ours.
func (s *Sim) fileOf(c caller, fd int) (f *openFile, errno syscall.Errno) {
	errno = s.withFD(c, fd, func(dup int, _ uint64) syscall.Errno {
		id, err := identify(dup)
		if err != nil {
			return s.refuse(syscall.EBADF, "identify descriptor: "+err.Error(), "fd", fd)
		}
		s.mu.Lock()
		defer s.unlock()
		if f = s.files[id]; f == nil {
			return s.refuse(syscall.EBADF, "descriptor belongs to another simulator", "fd", fd)
		}
		return 0
	})
	return f, errno
}

// dmabufOf finds the dmabuf behind a descriptor of the caller. All opens of one
// are alike, and its inode names it: no request through the own mount is needed,
// which costs more than all the rest of an import. The dmabuf comes back held.
func (s *Sim) dmabufOf(c caller, fd int) (d *dmabuf, errno syscall.Errno) {
	errno = s.withFD(c, fd, func(_ int, ino uint64) syscall.Errno {
		if ino&inoKindMask != inoDmabuf&inoKindMask {
			return s.refuse(syscall.EINVAL, "descriptor is not a dmabuf", "fd", fd)
		}
		s.mu.Lock()
		defer s.unlock()
		if d = s.dmabufs[ino&inoNumMask]; d == nil || d.opens == 0 {
			return s.refuse(syscall.EBADF, "dmabuf is gone", "fd", fd)
		}
		d.opens++
		return 0
	})
	return d, errno
}
