package fill

import (
	"errors"

	"github.com/gpucr/gpucr-fs/daemon/talk"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/kfd/drm"
	"github.com/gpucr/gpucr-fs/restore/vram"
)

// packet is one packet of [wire.Descriptors]; one of its fields is set. The client sends begin with the render nodes,
// then bos with their dma-bufs until they are all there, then, where begin says held, go. The daemon answers with
// progress, and at last with done; the restore server in CRIU with the plugin's messages WORKING and OK. A connection
// that begins with hand is of package talk.
type packet struct {
	talk.Packet
	Begin    *begin    `json:"begin,omitempty"`
	BOs      []vram.BO `json:"bos,omitempty"`
	Go       bool      `json:"go,omitempty"`
	Progress *progress `json:"progress,omitempty"`
	Done     *done     `json:"done,omitempty"`
}

type begin struct {
	Checkpoint string   `json:"checkpoint"`
	ID         string   `json:"id"`
	Nodes      []string `json:"nodes"`
	BOs        int      `json:"bos"`
	Held       bool     `json:"held,omitempty"`   // it begins with go
	Plugin     bool     `json:"plugin,omitempty"` // the restore server asks; answers are messages of its own

	Staging   int64     `json:"staging"`
	MaxBuffer int64     `json:"max_buffer"`
	Workers   int       `json:"workers"`
	Engine    drm.Kind  `json:"engine"`
	Verify    vram.Mode `json:"verify"`
}

type progress struct {
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
}

type done struct {
	Report vram.Report `json:"report"`
	Error  *wire.Error `json:"error,omitempty"`
	// BO is the index of the BO that the error is about, -1 for none.
	BO int    `json:"bo"`
	Op string `json:"op,omitempty"`
}

// maxBOs bounds the BOs of a fill: each is an open file.
const maxBOs = 1 << 17

var errPacket = errors.New("it sent what belongs to no fill")
