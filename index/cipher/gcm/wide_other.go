//go:build !amd64

package gcm

var wide = false

func expand(*[15 * block]byte, *[KeySize]byte)                   { panic("not for this processor") }
func ctr(_, _ *byte, _ int, _ *[15 * block]byte, _ *[block]byte) { panic("not for this processor") }
func ghash(*[block]byte, *[2 * group]byte, *byte, int)           { panic("not for this processor") }
