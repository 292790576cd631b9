package chunk

import "github.com/klauspost/compress/zstd"

// Tight encodes content smaller and slower than a Coder does. It is for one goroutine.
//
// Raw content was not worth a fast encoding. A sample, one page in eight, tells whether zstd makes it smaller by an
// eighth: less is not worth the decoding by every reader.
type Tight struct {
	enc *zstd.Encoder
}

// NewTight makes an encoder for content of up to maxLen bytes.
func NewTight(maxLen int) (*Tight, error) {
	window := zstd.MinWindowSize
	for window < maxLen {
		window *= 2
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(window))
	if err != nil {
		return nil, err
	}
	return &Tight{enc}, nil
}

// Close releases the encoder.
func (t *Tight) Close() { t.enc.Close() }

// Encode gives content as zstd in scratch, or nil where that is not worth while. was and stored say how it is stored
// now. Slots are whole pages, so only whole pages count, and they must be a twentieth of what is stored.
func (t *Tight) Encode(content []byte, was Codec, stored int, scratch []byte) []byte {
	if was != Raw && was != S2 || pages(stored) < 2 || was == Raw && !t.promising(content, scratch) {
		return nil
	}
	out := t.enc.EncodeAll(content, scratch[:0])
	saved := pages(stored) - pages(len(out))
	if saved < 1 || saved*20 < pages(stored) || was == Raw && saved*8 < pages(stored) {
		return nil
	}
	return out
}

// promising says whether samples of content shrink by an eighth.
func (t *Tight) promising(content, scratch []byte) bool {
	var sample []byte
	for off := 0; off < len(content); off += probeStep {
		sample = append(sample, content[off:min(off+probeLen, len(content))]...)
	}
	n := len(t.enc.EncodeAll(sample, scratch[:0]))
	return n <= len(sample)-len(sample)/8
}
