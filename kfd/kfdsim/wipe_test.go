package kfdsim

import (
	"bytes"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

// Nobody who frees VRAM waits until it is wiped. It counts as used until then, and an allocation that finds no other
// waits for it.
func TestVRAMIsWipedInTheBackground(t *testing.T) {
	const vram = 4 << 20
	s := startSim(t, Options{GPUs: []GPU{{VRAM: vram, Resident: 2 * vram}}})
	c := newClient(t, s)
	c.acquire()
	alloc := func(at uint64) abi.KFDAllocMemoryArgs {
		a := abi.KFDAllocMemoryArgs{VAAddr: at, Size: vram / 4 * 3, GPUID: c.gpus[0], Flags: abi.KFDMemVRAM | rw}
		c.must(c.kfd, abi.KFDIocAllocMemory, &a)
		return a
	}
	first := alloc(1 << 30)
	copy(c.mmap(c.render[0], first.MmapOffset, first.Size), "of the first")
	done := make(chan struct{})
	step := func(what string, fn func()) {
		t.Helper()
		go func() { fn(); done <- struct{}{} }()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("%s waits", what)
		}
	}
	pool := s.gpus[0].arena.pool
	pool.mu.Lock() // what is wiped does not come back
	held := true
	defer func() {
		if held {
			pool.mu.Unlock()
		}
	}()
	step("a free", func() { c.must(c.kfd, abi.KFDIocFreeMemory, &abi.KFDFreeMemoryArgs{Handle: first.Handle}) })
	if used := s.State().GPUs[0].VRAMUsed; used != first.Size {
		t.Errorf("%d bytes of VRAM are used while %d are wiped", used, first.Size)
	}
	var second abi.KFDAllocMemoryArgs
	go func() { second = alloc(2 << 30); done <- struct{}{} }()
	select {
	case <-done:
		t.Error("an allocation got VRAM that is not wiped")
	case <-time.After(50 * time.Millisecond):
	}
	held = false
	pool.mu.Unlock()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("an allocation waits for what is wiped")
	}
	if mem := c.mmap(c.render[0], second.MmapOffset, second.Size); !bytes.Equal(mem, make([]byte, len(mem))) {
		t.Error("VRAM is not wiped")
	}
}
