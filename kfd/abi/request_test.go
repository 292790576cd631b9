package abi

import "testing"

func TestRequestParts(t *testing.T) {
	r := KFDIocCRIUOp
	if r.Type() != TypeKFD || r.Nr() != 0x22 || r.Size() != 56 || !r.Reads() || !r.Writes() {
		t.Errorf("parts of %v: type %q nr %#x size %d reads %v writes %v",
			r, r.Type(), r.Nr(), r.Size(), r.Reads(), r.Writes())
	}
	if KFDIocGetVersion.Writes() || !KFDIocGetVersion.Reads() {
		t.Error("GET_VERSION is read-only for the caller")
	}
	if grown := KFDIocCreateQueue.WithSize(96); !grown.Same(KFDIocCreateQueue) || grown.Size() != 96 ||
		grown == KFDIocCreateQueue {
		t.Errorf("resized request %#x", uint32(grown))
	}
	if DRMIocVersion.Same(KFDIocGetVersion) {
		t.Error("requests of different types compare the same")
	}
	for r, want := range map[Request]string{
		KFDIocCreateQueue.WithSize(96): "AMDKFD_IOC_CREATE_QUEUE",
		AMDGPUIocCS:                    "DRM_IOCTL_AMDGPU_CS",
		0x12345678:                     "ioctl 0x12345678",
	} {
		if r.String() != want {
			t.Errorf("%#x is called %q, want %q", uint32(r), r, want)
		}
	}
}

func TestDecodeEncodeAnySize(t *testing.T) {
	full := make([]byte, 96)
	if err := Encode(full, KFDCreateQueueArgs{RingSize: 4096, QueueID: 7, CtlStackSize: 9}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 34, 88, 96} {
		var q KFDCreateQueueArgs
		if err := Decode(full[:n], &q); err != nil {
			t.Fatal(err)
		}
		want := KFDCreateQueueArgs{}
		switch {
		case n >= 88:
			want = KFDCreateQueueArgs{RingSize: 4096, QueueID: 7, CtlStackSize: 9}
		case n == 34:
			want.RingSize = 4096 & 0xffff
		}
		if q != want {
			t.Errorf("%d bytes decode to %+v, want %+v", n, q, want)
		}
	}

	small := []byte{0xff, 0xff, 0xff}
	if err := Encode(small[:2], &KFDEventArgs{EventID: 0x030201}); err != nil {
		t.Fatal(err)
	}
	if small[0] != 1 || small[1] != 2 || small[2] != 0xff {
		t.Errorf("short encode wrote % x", small)
	}
	if err := Decode(nil, &struct{ s []int }{}); err == nil {
		t.Error("decoding a structure without a fixed size succeeded")
	}
	if err := Encode(nil, map[int]int{}); err == nil {
		t.Error("encoding a map succeeded")
	}
}

func TestMmapOffset(t *testing.T) {
	off := KFDMmapOffset(KFDMmapDoorbell, 0xcd2b)
	if off != 0xc000_0000_0000_0000|0xcd2b<<46 {
		t.Errorf("doorbell offset %#x", off)
	}
	if got := KFDMmapGPUID(off | 0x1000); got != 0xcd2b {
		t.Errorf("gpu_id %#x of offset %#x", got, off)
	}
	if off&KFDMmapTypeMask != KFDMmapDoorbell {
		t.Errorf("type of offset %#x", off)
	}
}
