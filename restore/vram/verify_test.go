package vram

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/drm"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// One byte is enough: anywhere for all, at the places of the sample for a
// sample.
func TestVerifyFindsAFlippedByte(t *testing.T) {
	r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
	r.addAll()
	src := r.plain()
	if _, err := Fill(within(t), src, r.plan, Options{}); err != nil {
		t.Fatal(err)
	}
	rep, err := Verify(within(t), src, r.plan, Options{Verify: VerifyAll})
	if err != nil || rep.Verified != r.total() {
		t.Fatalf("verified %d of %d bytes: %v", rep.Verified, r.total(), err)
	}
	if rep, err := Verify(within(t), src, r.plan, Options{}); err != nil || rep.Verified == 0 ||
		rep.Verified >= r.total() {
		t.Fatalf("sampled %d of %d bytes: %v", rep.Verified, r.total(), err)
	}
	for i := range r.plan.BOs {
		last := len(r.vram[i]) - 1
		for _, tc := range []struct {
			at   int
			mode Mode
		}{{last, VerifySample}, {0, VerifySample}, {last / 3, VerifyAll}} {
			r.vram[i][tc.at] ^= 0x10
			_, err := Verify(within(t), src, r.plan, Options{Verify: tc.mode})
			if e := r.named(err); e.BO.Index != i || e.Op != "verify" {
				t.Errorf("bo %d, byte %d: %v", i, tc.at, err)
			}
			r.vram[i][tc.at] ^= 0x10
		}
	}
	if _, err := Verify(within(t), src, r.plan, Options{Verify: VerifyAll, Engine: drm.Mapping}); err != nil {
		t.Error(err)
	}
}

// A fill that went wrong without anybody noticing is found by its own
// verification.
func TestFillVerifies(t *testing.T) {
	r := newRig(t, kfdsim.GPU{})
	r.add(1, 0, content(1, mib))
	src := r.plain()
	spoil := func(done, total uint64) {
		if done == mib && total > mib || total == mib {
			r.vram[0][5] ^= 1
		}
	}
	_, err := Fill(within(t), src, r.plan, Options{Progress: spoil})
	if e := r.named(err); e.Op != "verify" || !strings.Contains(err.Error(), "byte 0x5 of it") {
		t.Errorf("error is %v", err)
	}
	if _, err := Fill(within(t), src, r.plan, Options{Progress: spoil, Verify: VerifyNone}); err != nil {
		t.Error(err)
	}
}

func TestVerifyMode(t *testing.T) {
	for _, m := range []Mode{VerifySample, VerifyNone, VerifyAll} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("%v reads as %v, %v", m, got, err)
		}
	}
	if m, err := ParseMode(""); err != nil || m != VerifySample {
		t.Errorf("nothing reads as %v, %v", m, err)
	}
	if _, err := ParseMode("some"); err == nil {
		t.Error("unknown mode was taken")
	}
}

// What Read writes is what Fill reads.
func TestRead(t *testing.T) {
	for _, opts := range []Options{{}, {Staging: MinStaging}, {Engine: drm.Mapping}} {
		r := newRig(t, kfdsim.GPU{}, kfdsim.GPU{})
		r.addAll()
		for i := range r.vram {
			copy(r.vram[i], r.want[i])
		}
		rep, err := Read(within(t), r.plan, DirSink(r.dir), opts)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range r.images() {
			if got, err := os.ReadFile(filepath.Join(r.dir, name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s has %d bytes, not the %d it should: %v", name, len(got), len(want), err)
			}
		}
		if rep.Bytes != r.total() || rep.PeakStaging > rep.Staging || rep.Staging > max(opts.Staging, DefaultStaging) {
			t.Errorf("%+v", rep)
		}
		r.filled()
	}
}
