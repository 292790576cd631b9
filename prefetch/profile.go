package prefetch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/gpucr/gpucr-fs/index/crc32c"
)

// Profile is the recorded order in which a restore touched data first. Each
// page of a file is in it at most once.
type Profile struct {
	Files   []string
	Touches []Range
}

// A stored profile is the magic, a version, and, all as uvarints but for the
// names' bytes: the number of files, each as length and name; the number of
// touches, each as file, the first page as a zigzag difference to the page
// after the touch before, and the number of pages; last a CRC-32C, little
// endian, of all before it.
const (
	profileMagic   = "GPRF"
	profileVersion = 1

	// Limits of a profile, kept to by the recorder, the encoder and the decoder: a
	// store takes no longer value, and a million runs are all that a restore of
	// hundreds of gigabytes touches before its sweep has passed by.
	maxProfileFiles = 1 << 16
	maxNameBytes    = 4096
	maxTouches      = 1 << 20
	maxProfile      = 8 << 20 // bytes
)

// ErrProfile marks bytes that are not a profile, or a damaged one.
var ErrProfile = errors.New("not a valid profile")

// Encode returns the stored form. What a profile cannot hold is left out, the
// last touches first: they are wanted last.
func (p *Profile) Encode() []byte {
	var names []byte
	files := 0
	for _, n := range p.Files[:min(len(p.Files), maxProfileFiles)] {
		if len(n) > maxNameBytes || len(names)+len(n) > maxProfile/2 {
			break
		}
		names = binary.AppendUvarint(names, uint64(len(n)))
		names = append(names, n...)
		files++
	}
	var body []byte
	var last int64
	n := 0
	for _, t := range p.Touches[:min(len(p.Touches), maxTouches)] {
		if len(names)+len(body) > maxProfile-64 {
			break
		}
		if t.File >= files {
			continue
		}
		body = binary.AppendUvarint(body, uint64(t.File))
		body = binary.AppendVarint(body, t.Off/PageSize-last)
		body = binary.AppendUvarint(body, uint64(t.Len/PageSize))
		last = t.End() / PageSize
		n++
	}
	b := append([]byte(profileMagic), profileVersion)
	b = binary.AppendUvarint(b, uint64(files))
	b = append(b, names...)
	b = binary.AppendUvarint(b, uint64(n))
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b))
}

// DecodeProfile reads the stored form. Errors wrap ErrProfile.
func DecodeProfile(b []byte) (*Profile, error) {
	bad := func(format string, args ...any) (*Profile, error) {
		return nil, fmt.Errorf("%w: %s", ErrProfile, fmt.Sprintf(format, args...))
	}
	if len(b) > maxProfile {
		return bad("%d bytes", len(b))
	}
	if len(b) < len(profileMagic)+1+4 || string(b[:len(profileMagic)]) != profileMagic {
		return bad("it does not start like one")
	}
	if v := b[len(profileMagic)]; v != profileVersion {
		return bad("version %d, this program knows %d", v, profileVersion)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32c.Checksum(body) != sum {
		return bad("its checksum is wrong")
	}
	r := varints{b: body[len(profileMagic)+1:]}
	p := &Profile{}
	files := r.uint()
	if files > maxProfileFiles {
		return bad("%d files", files)
	}
	for range files {
		n := r.uint()
		if r.bad || n > maxNameBytes || n > uint64(len(r.b)) {
			return bad("a name of %d bytes", n)
		}
		p.Files = append(p.Files, string(r.b[:n]))
		r.b = r.b[n:]
	}
	touches := r.uint()
	// Each takes three bytes at least.
	if touches > uint64(len(r.b))/3 {
		return bad("%d touches in %d bytes", touches, len(r.b))
	}
	if touches > 0 {
		p.Touches = make([]Range, 0, touches)
	}
	var last int64
	for range touches {
		file, delta, pages := r.uint(), r.int(), r.uint()
		const limit = math.MaxInt64 / PageSize
		if r.bad || file >= files || delta < -limit || delta > limit || pages == 0 || pages > limit {
			return bad("touch %d", len(p.Touches))
		}
		page := last + delta
		if page < 0 || page > limit-int64(pages) {
			return bad("touch %d", len(p.Touches))
		}
		last = page + int64(pages)
		p.Touches = append(p.Touches, Range{int(file), page * PageSize, int64(pages) * PageSize})
	}
	if r.bad || len(r.b) > 0 {
		return bad("%d bytes too many", len(r.b))
	}
	return p, nil
}

// varints takes numbers off a buffer.
type varints struct {
	b   []byte
	bad bool
}

func (v *varints) uint() uint64 {
	x, n := binary.Uvarint(v.b)
	v.take(n)
	return x
}

func (v *varints) int() int64 {
	x, n := binary.Varint(v.b)
	v.take(n)
	return x
}

func (v *varints) take(n int) {
	if n <= 0 {
		v.bad, n = true, 0
	}
	v.b = v.b[n:]
}

// Ranges returns the touches as ranges of other files: those of the same name.
// sizes are their sizes. What they do not have is left out, so the profile of
// a checkpoint serves its descendants.
func (p *Profile) Ranges(names []string, sizes []int64) []Range {
	number := make(map[string]int, len(names))
	for i, n := range names {
		number[n] = i
	}
	var out []Range
	for _, t := range p.Touches {
		i, ok := number[p.Files[t.File]]
		if !ok || t.Off >= sizes[i] {
			continue
		}
		out = append(out, Range{i, t.Off, min(t.Len, sizes[i]-t.Off)})
	}
	return out
}

// Bytes returns how much the profile touches.
func (p *Profile) Bytes() int64 {
	var n int64
	for _, t := range p.Touches {
		n += t.Len
	}
	return n
}
