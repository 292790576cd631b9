// Package wire is what the CRIU plugin and the process beside it say to each
// other: messages of one size over a SOCK_SEQPACKET socket, with descriptors.
//
// It mirrors restore/plugin/wire.h, which lists the messages, their senders and
// their answers; a test compiles that header and compares.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Type says what a message is about.
type Type uint32

// Messages of the plugin, then answers to it.
const (
	Hello Type = iota + 1
	DumpRender
	DumpKFD
	BOs
	DumpGo
	Resume
	Bye
	Attach
	File
	Node
	Restored
	Resumed
	Pause
	DumpDmabuf
	Objects
	Mapping
	Filled
	Again

	OK      Type = 32
	KFD     Type = 33
	Render  Type = 34
	Working Type = 35
	Export  Type = 36
	Plan    Type = 37
	Taken   Type = 38
)

// Bounds of a message.
const (
	Magic    = 0x35435047
	TextSize = 416
	MaxFDs   = 250
	MaxGPUs  = 64
	Size     = 768 // bytes of a Message
)

// Message is struct gpucr_msg.
type Message struct {
	Magic      uint32 `c:"magic"`
	Type       Type   `c:"type"`
	Status     int32  `c:"status"` // 0 or a negative errno
	ID         uint32 `c:"id"`
	PID        uint32 `c:"pid"`
	Minor      uint32 `c:"minor"`
	First      uint32 `c:"first"`
	Count      uint32 `c:"count"`
	NumDevices uint32 `c:"num_devices"`
	NumBOs     uint32 `c:"num_bos"`
	NumObjects uint32 `c:"num_objects"`
	NumRanges  uint32 `c:"num_ranges"`

	// Offsets in the shared memory, and sizes in bytes.
	Devices  uint64 `c:"devices"`
	BOs      uint64 `c:"bos"`
	Priv     uint64 `c:"priv"`
	PrivSize uint64 `c:"priv_size"`
	Ranges   uint64 `c:"ranges"`
	Size     uint64 `c:"size"`

	GPUs [MaxGPUs]uint32 `c:"gpus"` // in a File message, NumDevices of them; in Export handles, Count of them

	Text [TextSize]byte `c:"text"`
}

// Range is struct gpucr_range: mmap offsets that moved with the BO behind them.
type Range struct {
	Offset uint64 `c:"offset"`
	Size   uint64 `c:"size"`
	Minor  uint32 `c:"minor"` // of the render node at dump; 0: /dev/kfd
	BO     uint32 `c:"bo"`
}

// RangeSize is the size of a Range in bytes.
const RangeSize = 24

// Packet is struct gpucr_packet: the head of a record of a plan. Numbers of Count
// buffer objects follow it, then Bytes of a packet for the filler.
type Packet struct {
	Count uint32 `c:"count"`
	Bytes uint32 `c:"bytes"`
}

// AppendPacket appends a record to a plan.
func AppendPacket(plan []byte, bos []uint32, packet []byte) []byte {
	for _, n := range append([]uint32{uint32(len(bos)), uint32(len(packet))}, bos...) {
		plan = binary.NativeEndian.AppendUint32(plan, n)
	}
	plan = append(plan, packet...)
	return append(plan, make([]byte, -len(packet)&3)...)
}

// ErrProtocol marks bytes that no plugin of this version sends.
var ErrProtocol = errors.New("the plugin is of another version than gpucr-fs (hint: install both from one build)")

// SetText sets the text for people, cut to what a message holds.
func (m *Message) SetText(s string) {
	m.Text = [TextSize]byte{}
	copy(m.Text[:TextSize-1], s)
}

// String returns the text for people.
func (m *Message) String() string {
	text, _, _ := bytes.Cut(m.Text[:], []byte{0})
	return string(text)
}

func (m *Message) encode() ([]byte, error) {
	m.Magic = Magic
	return binary.Append(make([]byte, 0, Size), binary.NativeEndian, m)
}

func decode(b []byte) (*Message, error) {
	m := &Message{}
	if len(b) != Size {
		return nil, fmt.Errorf("message of %d bytes: %w", len(b), ErrProtocol)
	}
	if _, err := binary.Decode(b, binary.NativeEndian, m); err != nil {
		return nil, err
	}
	if m.Magic != Magic {
		return nil, fmt.Errorf("message of magic %#x: %w", m.Magic, ErrProtocol)
	}
	return m, nil
}
