package park

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// counters are what the kernel tells of a ring in /proc/PID/fdinfo, io_uring_show_fdinfo of Linux 6.18.
type counters struct {
	inode                    uint64
	sqMask, cqMask           uint32
	sqHead, sqTail, sqCached uint32 // cached: the kernel's own
	cqHead, cqTail, cqCached uint32
	files, buffers           int
	thread                   bool // SQPOLL
	polls, overflows, people int  // lines of lists
	napi                     bool
	closeOnExec              bool

	sqe, cqe   string // the first of those in the ring, as a line
	known      int    // how many of the above were there
	sqeIndex   int
	hasSQEList bool
}

// needed is how many of the names below must be there.
const needed = 12

// readCounters reads an fdinfo file.
func readCounters(r io.Reader) (c counters, err error) {
	lines := bufio.NewScanner(r)
	section := ""
	number := func(value string, base int, into *uint32) {
		n, perr := strconv.ParseUint(value, base, 32)
		*into = uint32(n)
		c.known++
		err = errors.Join(err, perr)
	}
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, " ") {
			c.listed(section, strings.TrimSpace(line))
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		section, value = name, strings.TrimSpace(value)
		switch name {
		case "flags":
			const closeOnExec = 0o2000000
			n, perr := strconv.ParseUint(value, 8, 64)
			c.closeOnExec = n&closeOnExec != 0
			err = errors.Join(err, perr)
			c.known++
		case "ino":
			var perr error
			c.inode, perr = strconv.ParseUint(value, 10, 64)
			err = errors.Join(err, perr)
			c.known++
		case "SqMask":
			number(strings.TrimPrefix(value, "0x"), 16, &c.sqMask)
		case "CqMask":
			number(strings.TrimPrefix(value, "0x"), 16, &c.cqMask)
		case "SqHead":
			number(value, 10, &c.sqHead)
		case "SqTail":
			number(value, 10, &c.sqTail)
		case "CachedSqHead":
			number(value, 10, &c.sqCached)
		case "CqHead":
			number(value, 10, &c.cqHead)
		case "CqTail":
			number(value, 10, &c.cqTail)
		case "CachedCqTail":
			number(value, 10, &c.cqCached)
		case "SqThread":
			c.thread = value != "-1"
			c.known++
		case "UserFiles":
			c.files, _ = strconv.Atoi(value)
			c.known++
		case "UserBufs":
			c.buffers, _ = strconv.Atoi(value)
			c.known++
		case "SQEs":
			c.hasSQEList = true
		case "NAPI":
			c.napi = value != "disabled"
		}
	}
	if err = errors.Join(err, lines.Err()); err != nil {
		return c, fmt.Errorf("what the kernel tells of a ring: %w", err)
	}
	return c, nil
}

// listed takes a line of a list.
func (c *counters) listed(section, line string) {
	switch section {
	case "PollList":
		c.polls++
	case "CqOverflowList":
		c.overflows++
	case "Personalities":
		c.people++
	case "SQEs":
		if c.sqe == "" {
			c.sqe = line
			c.sqeIndex, _ = strconv.Atoi(line[:max(strings.IndexByte(line, ':'), 0)])
		}
	case "CQEs":
		if c.cqe == "" {
			c.cqe = line
		}
	}
}

// errBusy is why a ring cannot be parked now, and can a moment later, it may be.
var errBusy = errors.New("busy")

// maxCounted bounds how many requests a ring may have counted: the new one is brought there by as many that do
// nothing, a tenth of a microsecond each.
const maxCounted = 1 << 26

// idle tells why a ring is not, or what it has that cannot be made anew.
func (c counters) idle() error {
	pending := c.sqTail - c.sqCached
	switch {
	case c.known <= needed || !c.hasSQEList:
		// The kernel tells nothing while somebody else is at the ring.
		return fmt.Errorf("%w: the kernel does not tell enough of it; Linux 6.9 or newer does", errBusy)
	case c.thread:
		return errors.New("a thread of the kernel serves it (IORING_SETUP_SQPOLL)")
	case c.files > 0 || c.buffers > 0:
		return fmt.Errorf("it has registered files (%d) or buffers (%d)", c.files, c.buffers)
	case c.people > 0:
		return errors.New("it has registered credentials")
	case c.napi:
		return errors.New("it polls network devices (IORING_REGISTER_NAPI)")
	case c.polls > 0 || c.sqCached != c.cqCached:
		return fmt.Errorf("%w: it has requests in flight, or completes them otherwise than one by one "+
			"(%d begun, %d completed, %d poll)", errBusy, c.sqCached, c.cqCached, c.polls)
	case c.overflows > 0:
		return errors.New("it has more completions than room for them")
	case c.sqHead != c.sqCached || c.cqTail != c.cqCached || pending > c.sqMask+1 || c.cqTail-c.cqHead > c.cqMask+1:
		return fmt.Errorf("%w: its indices contradict each other", errBusy)
	case c.sqCached > maxCounted:
		return fmt.Errorf("it has served %d requests, and a new one would take long to be brought there (%d at most)",
			c.sqCached, maxCounted)
	}
	return nil
}
