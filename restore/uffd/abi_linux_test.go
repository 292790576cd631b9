package uffd

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestABI compares the mirrored constants and layouts with the kernel's
// headers. Those of the machine may be older than what is mirrored: names they
// lack are compared with what they are defined as in newer ones.
func TestABI(t *testing.T) {
	const program = `
#include <stdio.h>
#include <stddef.h>
#include <linux/ioctl.h>
#include <linux/userfaultfd.h>
#include <sys/socket.h>
#ifndef UFFDIO_POISON
struct uffdio_poison { struct uffdio_range range; __u64 mode; __s64 updated; };
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#include <sys/mman.h>
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#include <linux/fs.h>
#ifndef PAGEMAP_SCAN
struct page_region { __u64 start, end, categories; };
struct pm_scan_arg {
	__u64 size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted, category_mask;
	__u64 category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#endif
#ifndef PAGE_IS_GUARD
#define PAGE_IS_GUARD (1 << 8)
#endif
#ifndef SCM_PIDFD
#define SCM_PIDFD 4
#endif
#define P(...) printf("%s %lx\n", #__VA_ARGS__, (unsigned long)(__VA_ARGS__))
int main(void)
{
	P(UFFD_EVENT_PAGEFAULT); P(UFFD_EVENT_FORK); P(UFFD_EVENT_REMAP); P(UFFD_EVENT_REMOVE); P(UFFD_EVENT_UNMAP);
	P(UFFDIO_WAKE); P(UFFDIO_COPY); P(UFFDIO_ZEROPAGE); P(UFFDIO_CONTINUE); P(UFFDIO_POISON);
	P(sizeof(struct uffd_msg)); P(sizeof(struct uffdio_range)); P(sizeof(struct uffdio_copy));
	P(sizeof(struct uffdio_zeropage)); P(sizeof(struct uffdio_continue)); P(sizeof(struct uffdio_poison));
	P(offsetof(struct uffd_msg, arg.pagefault.address)); P(offsetof(struct uffd_msg, arg.fork.ufd));
	P(offsetof(struct uffd_msg, arg.remap.from)); P(offsetof(struct uffd_msg, arg.remap.to));
	P(offsetof(struct uffd_msg, arg.remap.len));
	P(offsetof(struct uffd_msg, arg.remove.start)); P(offsetof(struct uffd_msg, arg.remove.end));
	P(offsetof(struct uffdio_copy, copy)); P(offsetof(struct uffdio_zeropage, zeropage));
	P(offsetof(struct uffdio_continue, mapped)); P(offsetof(struct uffdio_poison, updated));
	P(SO_PASSPIDFD); P(SO_PEERPIDFD); P(SCM_PIDFD); P(MADV_HUGEPAGE); P(MADV_COLLAPSE);
	P(PAGEMAP_SCAN); P(PAGE_IS_GUARD); P(sizeof(struct pm_scan_arg)); P(sizeof(struct page_region));
	P(offsetof(struct pm_scan_arg, return_mask));
	return 0;
}`
	bin := t.TempDir() + "/abi"
	cc := exec.Command("cc", "-x", "c", "-o", bin, "-")
	cc.Stdin = strings.NewReader(program)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s; needs a C compiler and linux-libc-dev", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	var m message
	var c argCopy
	var f argFill
	var want bytes.Buffer
	for _, v := range []struct {
		name  string
		value uintptr
	}{
		{"UFFD_EVENT_PAGEFAULT", eventFault}, {"UFFD_EVENT_FORK", eventFork}, {"UFFD_EVENT_REMAP", eventRemap},
		{"UFFD_EVENT_REMOVE", eventRemove}, {"UFFD_EVENT_UNMAP", eventUnmap},
		{"UFFDIO_WAKE", ioctlWake}, {"UFFDIO_COPY", ioctlCopy}, {"UFFDIO_ZEROPAGE", ioctlZeropage},
		{"UFFDIO_CONTINUE", ioctlContinue}, {"UFFDIO_POISON", ioctlPoison},
		{"sizeof(struct uffd_msg)", unsafe.Sizeof(m)}, {"sizeof(struct uffdio_range)", unsafe.Sizeof(argRange{})},
		{"sizeof(struct uffdio_copy)", unsafe.Sizeof(c)}, {"sizeof(struct uffdio_zeropage)", unsafe.Sizeof(f)},
		{"sizeof(struct uffdio_continue)", unsafe.Sizeof(f)}, {"sizeof(struct uffdio_poison)", unsafe.Sizeof(f)},
		{"offsetof(struct uffd_msg, arg.pagefault.address)", unsafe.Offsetof(m.b)},
		{"offsetof(struct uffd_msg, arg.fork.ufd)", unsafe.Offsetof(m.a)},
		{"offsetof(struct uffd_msg, arg.remap.from)", unsafe.Offsetof(m.a)},
		{"offsetof(struct uffd_msg, arg.remap.to)", unsafe.Offsetof(m.b)},
		{"offsetof(struct uffd_msg, arg.remap.len)", unsafe.Offsetof(m.c)},
		{"offsetof(struct uffd_msg, arg.remove.start)", unsafe.Offsetof(m.a)},
		{"offsetof(struct uffd_msg, arg.remove.end)", unsafe.Offsetof(m.b)},
		{"offsetof(struct uffdio_copy, copy)", unsafe.Offsetof(c.copied)},
		{"offsetof(struct uffdio_zeropage, zeropage)", unsafe.Offsetof(f.done)},
		{"offsetof(struct uffdio_continue, mapped)", unsafe.Offsetof(f.done)},
		{"offsetof(struct uffdio_poison, updated)", unsafe.Offsetof(f.done)},
		{"SO_PASSPIDFD", soPassPidfd}, {"SO_PEERPIDFD", soPeerPidfd}, {"SCM_PIDFD", scmPidfd},
		{"MADV_HUGEPAGE", madvHugepage}, {"MADV_COLLAPSE", madvCollapse},
		{"PAGEMAP_SCAN", ioctlPagemapScan}, {"PAGE_IS_GUARD", pageIsGuard},
		{"sizeof(struct pm_scan_arg)", unsafe.Sizeof(argScan{})},
		{"sizeof(struct page_region)", unsafe.Sizeof(pageRegion{})},
		{"offsetof(struct pm_scan_arg, return_mask)", unsafe.Offsetof(argScan{}.ret)},
	} {
		fmt.Fprintf(&want, "%s %x\n", v.name, v.value)
	}
	if string(out) != want.String() {
		t.Errorf("the headers say\n%s\nmirrored is\n%s", out, want.String())
	}
}

// newUffd returns a userfaultfd with the features that CRIU asks for.
func newUffd(t *testing.T) int {
	t.Helper()
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		t.Fatalf("userfaultfd: %v; needs root or vm.unprivileged_userfaultfd=1", errno)
	}
	api := struct{ api, features, ioctls uint64 }{api: 0xaa, features: 1<<1 | 1<<2 | 1<<3 | 1<<6}
	if e := ioctl(int(fd), 0xc018aa3f, unsafe.Pointer(&api)); e != 0 {
		t.Fatalf("UFFDIO_API: %v", e)
	}
	t.Cleanup(func() { unix.Close(int(fd)) })
	return int(fd)
}

// registered maps n pages of this process's memory and registers them.
func registered(t *testing.T, fd, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	// It is not unmapped: that would wait for somebody to read the event.
	reg := struct {
		argRange
		mode, ioctls uint64
	}{argRange{addrOf(mem), uint64(len(mem))}, 1, 0}
	if e := ioctl(fd, 0xc020aa00, unsafe.Pointer(&reg)); e != 0 {
		t.Fatalf("UFFDIO_REGISTER: %v", e)
	}
	return mem
}

func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

// TestProbe holds the kernel to what uffdProbe rests on.
func TestProbe(t *testing.T) {
	fd := newUffd(t)
	mem := registered(t, fd, 16)
	at := addrOf(mem)
	for _, c := range []struct {
		what     string
		start, n uint64
		want     unix.Errno
	}{
		{"registered", at, 16 * pageSize, unix.EINVAL},
		{"one page of it", at + pageSize, pageSize, unix.EINVAL},
		{"beyond the end", at + 15*pageSize, 2 * pageSize, unix.ENOENT},
		{"nothing", pageSize, pageSize, unix.ENOENT},
	} {
		if got := uffdProbe(fd, c.start, c.n); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
	if !quiet(fd) {
		t.Error("not quiet before any event")
	}
	if n, e := uffdZero(fd, at, pageSize); n != pageSize || e != 0 {
		t.Errorf("zero: %d, %v", n, e)
	}
	if got := uffdProbe(fd, at, pageSize); got != unix.EINVAL {
		t.Errorf("registered and filled: %v", got)
	}

	// While an event is unread nothing is filled.
	done := make(chan error)
	go func() { done <- unix.Madvise(mem[8*pageSize:9*pageSize], unix.MADV_DONTNEED) }()
	if _, err := waitReadable(0, fd); err != nil {
		t.Fatal(err)
	}
	if quiet(fd) {
		t.Error("quiet with an unread event")
	}
	if n, e := uffdZero(fd, at+2*pageSize, pageSize); n != 0 || e != unix.EAGAIN {
		t.Errorf("zero with an unread event: %d, %v", n, e)
	}
	var buf [4]message
	n, err := readMessages(fd, buf[:])
	if n != 1 || err != nil || buf[0].event != eventRemove {
		t.Fatalf("read %d, %v: %+v", n, err, buf[0])
	}
	if start, end := buf[0].span(); start != at+8*pageSize || end != start+pageSize {
		t.Errorf("removed %#x-%#x", start, end)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !quiet(fd) {
		t.Error("not quiet after the event")
	}
}

// TestProbeWhileMoving asks for memory where it is known to be until a report
// says otherwise, while a thread moves it to and fro: that it is not there is
// never the answer. The kernel alone would say so now and then.
func TestProbeWhileMoving(t *testing.T) {
	fd := newUffd(t)
	at := addrOf(registered(t, fd, 1))
	to, err := unix.Mmap(-1, 0, pageSize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	const moves = 20000
	done := make(chan error, 1)
	go func(from, to uintptr) {
		for range moves {
			const mayMove, fixed = 1, 2
			if _, _, e := unix.Syscall6(unix.SYS_MREMAP, from, pageSize, pageSize, mayMove|fixed, to, 0); e != 0 {
				done <- e
				return
			}
			from, to = to, from
		}
		done <- nil
	}(uintptr(at), uintptr(addrOf(to)))
	var buf [8]message
	answers := make(map[unix.Errno]int)
	for remaps := 0; ; {
		n, err := readMessages(fd, buf[:])
		if err != nil && err != unix.EAGAIN && err != unix.EINTR {
			t.Fatal(err)
		}
		for _, m := range buf[:max(n, 0)] {
			if m.event == eventRemap {
				_, at, _ = m.remap()
				remaps++
			}
		}
		if quiet(fd) {
			answers[uffdProbe(fd, at, pageSize)]++
		}
		select {
		case err := <-done:
			if err != nil || remaps != moves {
				t.Fatalf("%d moves reported: %v", remaps, err)
			}
			t.Log(answers)
			if answers[unix.ENOENT] > 0 || answers[unix.EINVAL] == 0 {
				t.Errorf("the answers were %v", answers)
			}
			return
		default:
		}
	}
}

// TestKernelEvents holds the kernel to what events.go says of the order of one
// thread's reports.
func TestKernelEvents(t *testing.T) {
	fd := newUffd(t)
	mem := registered(t, fd, 32)
	at := addrOf(mem)
	other := registered(t, fd, 8)
	type op func() error
	remap := func(from, n, to uint64, flags uintptr) op {
		return func() error {
			_, _, e := unix.Syscall6(unix.SYS_MREMAP, uintptr(from), uintptr(n), uintptr(n), flags, uintptr(to), 0)
			if e != 0 {
				return e
			}
			return nil
		}
	}
	const mayMove, fixed, dontUnmap = 1, 2, 4
	for _, c := range []struct {
		what string
		do   op
		want []message
	}{
		{"munmap", func() error {
			_, _, e := unix.Syscall(unix.SYS_MUNMAP, uintptr(at), 2*pageSize, 0)
			if e != 0 {
				return e
			}
			return nil
		}, []message{{event: eventUnmap, a: at, b: at + 2*pageSize}}},
		{"mremap over a registered range", remap(at+2*pageSize, 2*pageSize, addrOf(other), mayMove|fixed), []message{
			{event: eventUnmap, a: addrOf(other), b: addrOf(other) + 2*pageSize},
			{event: eventRemap, a: at + 2*pageSize, b: addrOf(other), c: 2 * pageSize},
			{event: eventUnmap, a: at + 2*pageSize, b: at + 4*pageSize}}},
		{"mremap that leaves the mapping", remap(at+4*pageSize, 2*pageSize, at, mayMove|fixed|dontUnmap), []message{
			{event: eventRemap, a: at + 4*pageSize, b: at, c: 2 * pageSize}}},
	} {
		done := make(chan error)
		go func() { done <- c.do() }()
		var got []message
		for i := 0; ; i++ {
			if len(got) == len(c.want) {
				if err := <-done; err != nil {
					t.Fatalf("%s: %v", c.what, err)
				}
				break
			}
			if _, err := waitReadable(0, fd); err != nil {
				t.Fatal(err)
			}
			var buf [8]message
			n, err := readMessages(fd, buf[:])
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, buf[:n]...)
		}
		for i := range got {
			if got[i].event != c.want[i].event || got[i].a != c.want[i].a || got[i].b != c.want[i].b ||
				got[i].c != c.want[i].c {
				t.Errorf("%s: report %d is %+v, want %+v", c.what, i, got[i], c.want[i])
			}
		}
		if !quiet(fd) {
			t.Errorf("%s: not quiet afterwards", c.what)
		}
	}
}
