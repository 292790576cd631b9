package drm

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// Options tune a Device. The zero value of a field selects its default.
type Options struct {
	Kind Kind
	// Rings bounds how many SDMA rings take submissions. Default 2.
	Rings int
	// Timeout is for how long a request is repeated that fails for a
	// moment. Default 10 s.
	Timeout time.Duration
}

// Slots for IBs of one ring: more than a context may have under way.
const (
	ibSlots = 48
	ibBytes = abi.AMDGPUPageSize
)

// vaStart leaves the bottom of the address space to the driver; vaAlign lets
// it use large pages.
const (
	vaStart = 1 << 32
	vaAlign = 2 << 20
)

// Device is one open of a render node, made ready to copy. Its methods may be
// called from any goroutine.
type Device struct {
	fd   int
	own  bool // fd is an open of the device's own, and all handles go with it
	opts Options
	kind Kind
	gen  generation
	ctx  uint32
	// Set by Open, closed by Close.
	rings []*ring
	ib    *Buffer

	// importing is held for reading from a request that gives an imported handle until
	// the handle is counted, and for writing while one is given up; before mu.
	importing sync.RWMutex

	mu      sync.Mutex
	nextVA  uint64
	endVA   uint64
	small   vaRange              // for buffers that are less than a page table maps
	handles map[uint32]int       // users of an imported handle
	buffers map[*Buffer]struct{} // not closed yet
	turn    int
	account account
	broken  error
}

// Open makes a device of an open render node, which it opens anew: it has an address space and handles of its own.
// Where that is not permitted, it duplicates the open, through which nobody else may submit then.
func Open(node *os.File, opts Options) (*Device, error) {
	if opts.Rings <= 0 {
		opts.Rings = 2
	}
	if opts.Timeout <= 0 {
		opts.Timeout = 10 * time.Second
	}
	raw, err := node.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, own := -1, true
	cerr := raw.Control(func(n uintptr) {
		again := fmt.Sprintf("/proc/self/fd/%d", n)
		if fd, err = unix.Open(again, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0)
			own = false
		}
	})
	if cerr != nil || err != nil {
		return nil, fmt.Errorf("duplicate render node: %w", errors.Join(cerr, err))
	}
	d := &Device{fd: fd, own: own, opts: opts, nextVA: vaStart, handles: map[uint32]int{},
		buffers: map[*Buffer]struct{}{}}
	if err := d.setUp(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Device) setUp() error {
	name, major, err := d.driver()
	if err != nil {
		return err
	}
	if name != "amdgpu" || major != abi.DRMVersionMajor {
		return fmt.Errorf("driver %q %d is not amdgpu %d", name, major, abi.DRMVersionMajor)
	}
	if d.opts.Kind == Mapping {
		d.kind = Mapping
		return nil
	}
	if err := d.setUpSDMA(); err != nil {
		if d.opts.Kind == SDMA {
			return fmt.Errorf("sdma: %w", err)
		}
		d.kind = Mapping
	}
	return nil
}

func (d *Device) setUpSDMA() error {
	var working uint32
	if err := info(d, abi.AMDGPUInfoArgs{Query: abi.AMDGPUInfoAccelWorking}, &working); err != nil {
		return err
	}
	if working == 0 {
		return errors.New("acceleration does not work on this gpu")
	}
	var dev abi.AMDGPUDeviceInfo
	if err := info(d, abi.AMDGPUInfoArgs{Query: abi.AMDGPUInfoDevInfo}, &dev); err != nil {
		return err
	}
	var ip abi.AMDGPUInfoHWIP
	if err := info(d, abi.AMDGPUInfoArgs{Query: abi.AMDGPUInfoHWIPInfo, DwordOffset: abi.AMDGPUHWIPDMA},
		&ip); err != nil {
		return err
	}
	var err error
	if d.gen, err = generationOf(dev.Family, ip.VersionMajor); err != nil {
		return err
	}
	if d.endVA = dev.VirtualAddressMax; d.endVA <= vaStart {
		return fmt.Errorf("address space ends at %#x", d.endVA)
	}
	if d.ctx, err = d.newContext(); err != nil {
		return err
	}
	n := min(d.opts.Rings, bits.OnesCount32(ip.AvailableRings))
	if n == 0 {
		return errors.New("no sdma ring is available")
	}
	if d.ib, err = d.allocate(uint64(n) * ibSlots * ibBytes); err != nil {
		return fmt.Errorf("memory for packets: %w", err)
	}
	for i := range 32 {
		if ip.AvailableRings&(1<<i) != 0 && len(d.rings) < n {
			d.rings = append(d.rings, newRing(d, uint32(i), len(d.rings)*ibSlots))
		}
	}
	d.kind = SDMA
	return nil
}

// Kind tells how this device moves bytes: SDMA or Mapping.
func (d *Device) Kind() Kind { return d.kind }

// Rings returns how many rings submissions are spread over; each completes in
// its own order. It is 1 for a mapping device.
func (d *Device) Rings() int { return max(1, len(d.rings)) }

// Err reports why the device takes no more submissions, if it does not. It
// asks the driver whether a reset has lost what was submitted.
func (d *Device) Err() error {
	d.mu.Lock()
	err := d.broken
	d.mu.Unlock()
	if err != nil || d.kind != SDMA {
		return err
	}
	lost, err := d.hung()
	if err != nil {
		return err
	}
	if lost {
		return d.fail(errors.New("the gpu was reset while it copied"))
	}
	return nil
}

// fail keeps the first error that makes the device useless, and returns it.
func (d *Device) fail(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.broken == nil {
		d.broken = err
	}
	return d.broken
}

// Close gives up the device and all buffers made with it, but not the open of
// the render node that it was made of. Submissions should have been waited for;
// memory that was registered must stay until Close has returned.
func (d *Device) Close() error {
	var errs []error
	d.mu.Lock()
	left := slices.Collect(maps.Keys(d.buffers))
	d.mu.Unlock()
	for _, b := range left {
		if d.own {
			errs = append(errs, b.unmapCPU())
		} else {
			errs = append(errs, b.Close())
		}
	}
	// The driver gives up handles and contexts of an open with its last descriptor (drm_file_free): of thousands of
	// buffers that saves a request each.
	if d.ctx != 0 && !d.own {
		args := abi.AMDGPUCtxIn{Op: abi.AMDGPUCtxOpFree, CtxID: d.ctx}
		errs = append(errs, do(d, abi.AMDGPUIocCtx, &args))
	}
	return errors.Join(append(errs, os.NewSyscallError("close render node", unix.Close(d.fd)))...)
}

// Stats is what a device has done.
type Stats struct {
	Bytes, Jobs uint64
	// Busy is how long at least one submission was under way.
	Busy time.Duration
}

// account keeps Stats. Device.mu guards it.
type account struct {
	Stats
	active int
	since  time.Time
}

// Stats returns the account so far.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.account.Stats
	if d.account.active > 0 {
		s.Busy += time.Since(d.account.since)
	}
	return s
}

func (d *Device) began(bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := &d.account
	if a.active == 0 {
		a.since = time.Now()
	}
	a.active++
	a.Jobs++
	a.Bytes += bytes
}

func (d *Device) ended() {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := &d.account
	if a.active--; a.active == 0 {
		a.Busy += time.Since(a.since)
	}
}

// pickRing takes turns.
func (d *Device) pickRing() *ring {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turn++
	return d.rings[d.turn%len(d.rings)]
}
