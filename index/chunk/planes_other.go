//go:build !amd64

package chunk

const haveBlocks = false

func joinBlocks(dst, nibbles, low *byte, blocks int, values *[16]byte, masks *uint32) {
	panic("chunk: no vector instructions on this machine")
}

func splitBlocks(content *byte, blocks int, t *planeTable, nibbles, low *byte, masks *uint32) {
	panic("chunk: no vector instructions on this machine")
}
