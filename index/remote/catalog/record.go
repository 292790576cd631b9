package catalog

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpucr/gpucr-fs/index/crc32c"
	"github.com/gpucr/gpucr-fs/index/manifest"
)

const (
	// MaxPacks bounds the packs of a checkpoint.
	MaxPacks = 1 << 16
	// MaxMeta bounds Record.Meta in bytes.
	MaxMeta = 64 << 10
	// maxRecord bounds an encoded record in bytes.
	maxRecord = 8 << 20

	nonceDigits = 32
	version     = "gpucr-fs root 1"
	family      = "gpucr-fs root "
)

// Errors of this package. Those of the bucket are wrapped as they are.
var (
	// ErrNotFound: no checkpoint of that name stands.
	ErrNotFound = errors.New("no such checkpoint")
	// ErrExists: a checkpoint of that name stands.
	ErrExists = errors.New("the checkpoint exists")
	// ErrInUse: somebody else writes a checkpoint of that name.
	ErrInUse = errors.New("the checkpoint is being written by somebody else")
	// ErrTaken: a collector took the draft for abandoned, or somebody aborted it. It must be begun anew.
	ErrTaken = errors.New("the draft was taken away, as its writer seemed to have gone")
	// ErrRemoved: the checkpoint was removed while it was read.
	ErrRemoved = errors.New("the checkpoint was removed")
	// ErrMoved: the checkpoint stands, and was given other packs while it was read. It must be found anew.
	ErrMoved = errors.New("the checkpoint's content was moved to other packs while it was read")
	// ErrCorrupt: a record, or what it refers to, is not what was written.
	ErrCorrupt = errors.New("corrupt")
	// ErrVersion: a record is of a later format.
	ErrVersion = errors.New("the record is of a later format")
	// ErrInvalid: an argument cannot be used.
	ErrInvalid = errors.New("invalid")
)

// State says what a record stands for.
type State string

// States of a root, and of what remains of a removed one.
const (
	Pending State = "pending" // a draft; Packs are those it has claimed
	Sealed  State = "sealed"  // a checkpoint
	Void    State = "void"    // nothing: the name is free
	Removed State = "removed" // under removed/ only: Packs are kept for readers
)

// Pack names a pack and gives its length in bytes.
type Pack struct {
	ID   string
	Size int64
}

// draft gives the nonce of the draft that wrote the pack.
func (p Pack) draft() string { return p.ID[:nonceDigits] }

// Record is what a root holds.
type Record struct {
	State    State
	Name     string
	Nonce    string // of the draft
	Revision string // of this write
	Packs    []Pack // in the caller's order, none twice
	Meta     []byte // the caller's; where the manifest lies, say
}

// encode gives the record's bytes: lines of text, the last a CRC-32C of those before.
func (r Record) encode() []byte {
	b := make([]byte, 0, 192+len(r.Meta)*4/3+len(r.Packs)*56)
	b = append(b, version...)
	for _, line := range [...][2]string{
		{"state", string(r.State)}, {"name", r.Name}, {"nonce", r.Nonce}, {"revision", r.Revision},
	} {
		b = append(append(append(append(b, '\n'), line[0]...), ' '), line[1]...)
	}
	if len(r.Meta) > 0 {
		b = base64.RawStdEncoding.AppendEncode(append(b, "\nmeta "...), r.Meta)
	}
	for _, p := range r.Packs {
		b = append(append(append(b, "\npack "...), p.ID...), ' ')
		b = strconv.AppendInt(b, p.Size, 10)
	}
	b = append(b, '\n')
	return fmt.Appendf(b, "crc32c %08x\n", crc32c.Checksum(b))
}

// check says whether the record may be written, and so also read.
func (r Record) check() error {
	switch {
	case r.State != Pending && r.State != Sealed && r.State != Void && r.State != Removed:
		return fmt.Errorf("%w: state %q", ErrInvalid, r.State)
	case !validName(r.Name):
		return fmt.Errorf("%w: name %q", ErrInvalid, r.Name)
	case !validNonce(r.Nonce), !validNonce(r.Revision):
		return fmt.Errorf("%w: nonce or revision", ErrInvalid)
	case len(r.Packs) > MaxPacks:
		return fmt.Errorf("%w: %d packs, at most %d are allowed", ErrInvalid, len(r.Packs), MaxPacks)
	case len(r.Meta) > MaxMeta:
		return fmt.Errorf("%w: meta of %d bytes, at most %d are allowed", ErrInvalid, len(r.Meta), MaxMeta)
	case r.State == Void && len(r.Packs)+len(r.Meta) > 0:
		return fmt.Errorf("%w: a void root refers to something", ErrInvalid)
	}
	ids := make([]string, 0, len(r.Packs))
	for _, p := range r.Packs {
		if !ValidPack(p) {
			return fmt.Errorf("%w: pack %q of %d bytes", ErrInvalid, p.ID, p.Size)
		}
		ids = append(ids, p.ID)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) < len(r.Packs) {
		return fmt.Errorf("%w: a pack is listed twice", ErrInvalid)
	}
	return nil
}

// validName says whether name can be that of a root: a checkpoint's, or one that Beside gives.
func validName(name string) bool {
	id, beside := strings.CutPrefix(name, beside)
	return beside && manifest.ValidID(id) || !beside && manifest.ValidName(name)
}

// ValidPack says whether p can be a pack of a bucket.
func ValidPack(p Pack) bool {
	nonce, number, ok := strings.Cut(p.ID, "-")
	n, err := strconv.ParseUint(number, 10, 32)
	return ok && validNonce(nonce) && err == nil && strconv.FormatUint(n, 10) == number && p.Size >= 0
}

func validNonce(s string) bool {
	if len(s) != nonceDigits {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// decode takes what encode gives and nothing else. Its errors are ErrCorrupt and ErrVersion.
func decode(b []byte) (Record, error) {
	var r Record
	if len(b) > maxRecord {
		return r, fmt.Errorf("%w: a root of %d bytes", ErrCorrupt, len(b))
	}
	head, rest, _ := bytes.Cut(b, []byte("\n"))
	if string(head) != version {
		if bytes.HasPrefix(head, []byte(family)) {
			return r, ErrVersion
		}
		return r, fmt.Errorf("%w: not a root", ErrCorrupt)
	}
	const sum = len("crc32c 01234567\n")
	if len(rest) < sum {
		return r, fmt.Errorf("%w: a root that ends early", ErrCorrupt)
	}
	body, end := b[:len(b)-sum], b[len(b)-sum:]
	if !bytes.Equal(end, fmt.Appendf(nil, "crc32c %08x\n", crc32c.Checksum(body))) {
		return r, fmt.Errorf("%w: a root whose sum is another", ErrCorrupt)
	}
	for line := range strings.SplitSeq(string(body[len(version)+1:]), "\n") {
		word, value, _ := strings.Cut(line, " ")
		switch word {
		case "state":
			r.State = State(value)
		case "name":
			r.Name = value
		case "nonce":
			r.Nonce = value
		case "revision":
			r.Revision = value
		case "meta":
			r.Meta, _ = base64.RawStdEncoding.DecodeString(value)
		case "pack":
			id, size, _ := strings.Cut(value, " ")
			n, err := strconv.ParseInt(size, 10, 64)
			if err != nil {
				return r, fmt.Errorf("%w: a pack of a root", ErrCorrupt)
			}
			r.Packs = append(r.Packs, Pack{id, n})
		}
	}
	if err := r.check(); err != nil {
		return r, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if !bytes.Equal(r.encode(), b) {
		return r, fmt.Errorf("%w: a root in an unknown form", ErrCorrupt)
	}
	return r, nil
}
