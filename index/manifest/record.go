package manifest

import (
	"errors"
	"fmt"
	"path"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// Version of the manifest format.
const Version = 1

// ErrVersion: the record was written by a later version of the program.
var ErrVersion = errors.New("written by a later version")

// EncodeCheckpoint gives the stored form of a root record.
func EncodeCheckpoint(c *manifestpb.Checkpoint) ([]byte, error) {
	c.Version = Version
	return proto.Marshal(c)
}

// DecodeCheckpoint reads what EncodeCheckpoint wrote.
func DecodeCheckpoint(b []byte) (*manifestpb.Checkpoint, error) {
	var c manifestpb.Checkpoint
	if err := proto.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("malformed root record: %w", err)
	}
	switch {
	case c.Version > Version:
		return nil, fmt.Errorf("root record: %w (format %d)", ErrVersion, c.Version)
	case c.Version == 0 || c.Id == "" || c.Name == "":
		return nil, errors.New("malformed root record: no identity")
	}
	return &c, nil
}

// EncodeEntries gives the stored form of one part of a file table.
func EncodeEntries(e []*manifestpb.Entry) ([]byte, error) {
	return proto.Marshal(&manifestpb.Entries{Entries: e})
}

// DecodeEntries reads what EncodeEntries wrote and insists on clean relative paths and plausible sizes.
func DecodeEntries(b []byte) ([]*manifestpb.Entry, error) {
	var e manifestpb.Entries
	if err := proto.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("malformed file table: %w", err)
	}
	for _, f := range e.Entries {
		if !ValidPath(f.Path) {
			return nil, fmt.Errorf("malformed file table: path %q", f.Path)
		}
		if f.Size < 0 || f.Zero < 0 || f.Zero > f.Size {
			return nil, fmt.Errorf("malformed file table: %s has %d bytes, %d of them zero", f.Path, f.Size, f.Zero)
		}
		if len(f.Inline) > 0 && int64(len(f.Inline)) != f.Size {
			return nil, fmt.Errorf("malformed file table: %s has %d of %d bytes", f.Path, len(f.Inline), f.Size)
		}
		last := int64(-1)
		for _, s := range f.Segments {
			if s <= last || s >= f.Size {
				return nil, fmt.Errorf("malformed file table: %s has a segment at %d", f.Path, s)
			}
			last = s
		}
	}
	return e.Entries, nil
}

// ValidPath says whether p is a clean, relative, slash-separated path that stays below its root.
func ValidPath(p string) bool {
	return p != "" && p != "." && p[0] != '/' && path.Clean(p) == p && p != ".." && (len(p) < 3 || p[:3] != "../") && !containsNUL(p)
}

func containsNUL(p string) bool {
	for i := range len(p) {
		if p[i] == 0 {
			return true
		}
	}
	return false
}
