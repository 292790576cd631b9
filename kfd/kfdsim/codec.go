package kfdsim

import "encoding/binary"

// appendStruct appends the image of one of the abi structures, which are all
// of fixed size.
func appendStruct(b []byte, v any) []byte {
	out, err := binary.Append(b, binary.NativeEndian, v)
	if err != nil {
		panic("kfdsim: " + err.Error())
	}
	return out
}
