package manifest

import (
	"encoding/binary"
	"fmt"

	"github.com/gpucr/gpucr-fs/index/chunk"
)

// HotPiece is how many bytes of a hot set lie in one chunk where it is kept in a bucket, but in the last one.
const HotPiece = 512 << 10

// HotKey is the key of what tells where a bucket has the hot set of a checkpoint: its length, and the ids of its
// chunks.
func HotKey(id string) string { return ProfilePrefix + id + "/hot" }

// EncodeHot gives the record of a hot set of size bytes.
func EncodeHot(size int64, ids []chunk.ID) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(ids)*chunk.IDSize), uint64(size))
	for _, id := range ids {
		b = append(b, id[:]...)
	}
	return b
}

// DecodeHot reads the record of a hot set.
func DecodeHot(b []byte) (size int64, ids []chunk.ID, err error) {
	if len(b) < 8 || (len(b)-8)%chunk.IDSize != 0 {
		return 0, nil, fmt.Errorf("a hot set's record of %d bytes", len(b))
	}
	n, pieces := binary.LittleEndian.Uint64(b), uint64(len(b)-8)/chunk.IDSize
	if n == 0 || n > pieces*HotPiece || n <= (pieces-1)*HotPiece {
		return 0, nil, fmt.Errorf("a hot set of %d bytes in %d pieces", n, pieces)
	}
	for b = b[8:]; len(b) > 0; b = b[chunk.IDSize:] {
		ids = append(ids, chunk.ID(b[:chunk.IDSize]))
	}
	return int64(n), ids, nil
}
