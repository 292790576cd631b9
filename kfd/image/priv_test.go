package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/kfd/abi"
)

func samplePriv() *PrivData {
	return &PrivData{
		XNACKMode: 1,
		Devices:   make([]abi.KFDPrivDevice, 2),
		BOs: []abi.KFDPrivBO{
			{UserAddr: 0x7f00dead0000, IDRHandle: 0x10, MappedGPUIDs: [64]uint32{0xa000, 0xb111}},
			{IDRHandle: 0xffffffff, MappedGPUIDs: [64]uint32{63: 0xb111}},
		},
		Queues: []PrivQueue{{
			KFDPrivQueue: abi.KFDPrivQueue{
				QAddress: 1, QSize: 2, ReadPtrAddr: 3, WritePtrAddr: 4, DoorbellOff: 5, EOPRingBufferAddress: 6,
				CtxSaveRestoreAddress: 7, GPUID: 8, Type: abi.KFDPrivQueueTypeCompute,
				Format: abi.KFDPrivQueueFormatAQL,
				QID:    9, Priority: 10, QPercent: 11, DoorbellID: 12, GWS: 13, SDMAID: 14, EOPRingBufferSize: 15,
				CtxSaveRestoreSize: 16, CtlStackSize: 3, MQDSize: 5,
			},
			MQD: []byte("mqd..."[:5]), CtlStack: []byte("ctl"),
		}},
		Events: []abi.KFDPrivEvent{{
			ObjectType: abi.KFDPrivObjectEvent, UserHandle: 1, EventID: 2, AutoReset: 1, Type: abi.KFDEventMemory,
			Signaled:  1,
			Exception: abi.KFDMemoryException{NotPresent: 1, VA: 0xdead000, GPUID: 0xa000},
		}},
		Ranges: []PrivRange{{
			KFDPrivSVMRange: abi.KFDPrivSVMRange{ObjectType: abi.KFDPrivObjectSVMRange, StartAddr: 0x7f0000000000,
				Size: 2 << 20},
			Attrs: []abi.KFDSVMAttribute{{Type: 0, Value: 1}, {Type: 1, Value: 2}, {Type: 5, Value: 3},
				{Type: 7, Value: 9}, {Type: 2, Value: 0xa000}, {Type: 4, Value: 0xb111}},
		}},
	}
}

func TestPrivDataRoundTrip(t *testing.T) {
	p := samplePriv()
	raw := p.Append(nil)
	if want := 8 + 2*8 + 2*272 + 120 + 5 + 3 + 64 + 24 + 6*8; len(raw) != want {
		t.Fatalf("%d bytes, the kernel writes %d", len(raw), want)
	}
	got, err := ParsePrivData(raw, 2, 2, p.Objects())
	if err != nil {
		t.Fatal(err)
	}
	if out := got.Append(nil); !bytes.Equal(out, raw) {
		t.Errorf("% x\nbecame\n% x", raw, out)
	}
	q := got.Queues[0]
	if q.CtxSaveRestoreSize != 16 || string(q.MQD) != "mqd.." || string(q.CtlStack) != "ctl" ||
		got.BOs[1].MappedGPUIDs[63] != 0xb111 {
		t.Errorf("read %+v", got)
	}
	for _, dir := range []string{"later", "v42"} {
		m, _, err := DecodeProcess(golden(t, dir+"/amdgpu-kfd-7.img"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := ParsePrivData(m.PrivData, 2, len(m.Bos), m.GetNumOfObjects())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p.Append(nil), m.PrivData) {
			t.Errorf("%s: private data changed", dir)
		}
	}
}

func TestPrivDataErrors(t *testing.T) {
	raw := samplePriv().Append(nil)
	version := bytes.Clone(raw)
	binary.NativeEndian.PutUint32(version, 2)
	object := bytes.Clone(raw)
	binary.NativeEndian.PutUint32(object[8+16+544:], 9)
	mqd := bytes.Clone(raw)
	binary.NativeEndian.PutUint32(mqd[8+16+544+112:], 1<<31)
	for _, c := range []struct {
		b       []byte
		objects uint32
		class   error
		want    string
	}{
		{version, 3, ErrUnsupported, "version 2, only 1 is known"},
		{object, 3, ErrUnsupported, "object of type 9"},
		{mqd, 3, ErrCorrupt, "into an item of 2147483648"},
		{raw[:len(raw)-1], 3, ErrCorrupt, "ends 7 bytes into an item of 8"},
		{raw[:4], 3, ErrCorrupt, "ends 4 bytes into an item of 8"},
		{raw, 2, ErrCorrupt, "goes on for 72 bytes"},
		{raw, 4, ErrCorrupt, "ends before its last object"},
		{nil, 0, ErrCorrupt, "ends 0 bytes into an item of 8"},
	} {
		if _, err := ParsePrivData(c.b, 2, 2, c.objects); !errors.Is(err, c.class) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%d objects: error %v, want %q", c.objects, err, c.want)
		}
	}
	s := Process{Name: "amdgpu-kfd-1.img", Message: process(nil), Layout: &Layout{}}
	if note := s.summary().PrivNote; !strings.HasPrefix(note, "amdgpu-kfd-1.img: private data ends") {
		t.Errorf("note %q", note)
	}
}
