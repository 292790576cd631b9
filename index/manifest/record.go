package manifest

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// Version of the manifest format.
const Version = 1

// Limits of what is stored, so that reading needs bounded memory. Encoding refuses what decoding would, by the same
// checks: what was written can be read.
const (
	// MaxRecord bounds one encoded record in bytes. A segment with all the runs it may have takes 5 MiB.
	MaxRecord = 8 << 20
	// MaxFileSize bounds a file in bytes: a page behind its end is still a number.
	MaxFileSize = 1 << 60
	// MaxLogical bounds the files of a checkpoint together.
	MaxLogical = 1 << 62
	// MaxPart is how many entries one part of the table of files may have, MaxEntries how many all parts together.
	MaxPart    = 1 << 15
	MaxEntries = 1 << 22
	// MaxInline bounds what lies in the table of files itself: less than a page.
	MaxInline = 4095
	// MaxLabels is how many labels a checkpoint may have: they travel with every list of checkpoints. MaxLabelValue is
	// the length of a value in bytes.
	MaxLabels     = 64
	MaxLabelValue = 1024
	// MaxTags is how many tags a checkpoint may have.
	MaxTags = 1024
)

// ErrVersion: the record was written by a later version of the program.
var ErrVersion = errors.New("written by a later version")

// ErrLimit: what was to be encoded could not be read again.
var ErrLimit = errors.New("a checkpoint cannot hold this")

var (
	errRoot  = errors.New("malformed root record")
	errTable = errors.New("malformed file table")
)

// marshal encodes what has been checked.
func marshal(m proto.Message) ([]byte, error) {
	b, err := proto.Marshal(m)
	if err == nil && len(b) > MaxRecord {
		err = fmt.Errorf("%w: a record of %d bytes", ErrLimit, len(b))
	}
	return b, err
}

// unmarshal decodes a record of bounded size.
func unmarshal(b []byte, m proto.Message) error {
	if len(b) > MaxRecord {
		return fmt.Errorf("a record of %d bytes", len(b))
	}
	return proto.Unmarshal(b, m)
}

// EncodeCheckpoint gives the stored form of a root record.
func EncodeCheckpoint(c *manifestpb.Checkpoint) ([]byte, error) {
	c.Version = Version
	if err := checkCheckpoint(c); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLimit, err)
	}
	return marshal(c)
}

// DecodeCheckpoint reads what EncodeCheckpoint wrote. Its id, name, tags and parent's id are of the form that [ValidID]
// and [ValidName] tell.
func DecodeCheckpoint(b []byte) (*manifestpb.Checkpoint, error) {
	var c manifestpb.Checkpoint
	if err := unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("%w: %w", errRoot, err)
	}
	if c.Version > Version {
		return nil, fmt.Errorf("root record: %w (format %d)", ErrVersion, c.Version)
	}
	return &c, checkCheckpoint(&c)
}

func checkCheckpoint(c *manifestpb.Checkpoint) error {
	switch {
	case c.Version == 0 || c.Id == "" || c.Name == "":
		return fmt.Errorf("%w: no identity", errRoot)
	case !ValidID(c.Id):
		return fmt.Errorf("%w: id %.40q", errRoot, c.Id)
	case !ValidName(c.Name):
		return fmt.Errorf("%w: name %.40q", errRoot, c.Name)
	case len(c.Bucket) != 0 && len(c.Bucket) != 16:
		return fmt.Errorf("%w: a bucket of %d bytes", errRoot, len(c.Bucket))
	case c.ParentId != "" && !ValidID(c.ParentId):
		return fmt.Errorf("%w: parent %.40q", errRoot, c.ParentId)
	case len(c.Tags) > MaxTags:
		return fmt.Errorf("%w: %d tags", errRoot, len(c.Tags))
	case c.Logical < 0 || c.Logical > MaxLogical || c.Zero < 0 || c.Zero > c.Logical:
		return fmt.Errorf("%w: %d bytes, %d of them zero", errRoot, c.Logical, c.Zero)
	case c.Files > MaxEntries || c.Parts > MaxEntries:
		return fmt.Errorf("%w: %d files in %d parts", errRoot, c.Files, c.Parts)
	}
	for _, t := range c.Tags {
		if !ValidName(t) {
			return fmt.Errorf("%w: tag %.40q", errRoot, t)
		}
	}
	if len(c.Labels) > MaxLabels {
		return fmt.Errorf("%w: %d labels", errRoot, len(c.Labels))
	}
	for k, v := range c.Labels {
		if !ValidLabelKey(k) || !ValidLabelValue(v) {
			return fmt.Errorf("%w: label %.80q", errRoot, k)
		}
	}
	return nil
}

// ValidLabelKey says whether key can be that of a label: up to 63 small letters, digits, dots, dashes, underscores and
// slashes, a letter or digit first.
func ValidLabelKey(key string) bool {
	for i, c := range []byte(key) {
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("._/-", rune(c))) {
			return false
		}
	}
	return key != "" && len(key) < 64
}

// ValidLabelValue says whether value can be that of a label: what can be printed on one line, at most MaxLabelValue
// bytes.
func ValidLabelValue(value string) bool {
	return len(value) <= MaxLabelValue && utf8.ValidString(value) && !strings.ContainsFunc(value, unicode.IsControl)
}

// EncodeEntries gives the stored form of one part of a file table.
func EncodeEntries(e []*manifestpb.Entry) ([]byte, error) {
	if err := checkEntries(e); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLimit, err)
	}
	return marshal(&manifestpb.Entries{Entries: e})
}

// DecodeEntries reads what EncodeEntries wrote and insists on clean relative paths and plausible sizes.
func DecodeEntries(b []byte) ([]*manifestpb.Entry, error) {
	// An entry takes hundreds of bytes in memory, whatever it takes in b: they are counted before one is made.
	if n := countEntries(b); n > MaxPart {
		return nil, fmt.Errorf("%w: %d entries in one part", errTable, n)
	}
	var e manifestpb.Entries
	if err := unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", errTable, err)
	}
	return e.Entries, checkEntries(e.Entries)
}

// countEntries gives the number of fields of an encoded table; where it ends is for the decoder to complain of.
func countEntries(b []byte) (n int) {
	for len(b) > 0 {
		_, _, k := protowire.ConsumeField(b)
		if k < 0 {
			return n
		}
		b = b[k:]
		n++
	}
	return n
}

func checkEntries(list []*manifestpb.Entry) error {
	if len(list) > MaxPart {
		return fmt.Errorf("%w: %d entries in one part", errTable, len(list))
	}
	for i, e := range list {
		if err := checkEntry(e); err != nil {
			return err
		}
		if i > 0 && e.Path <= list[i-1].Path {
			return fmt.Errorf("%w: %q follows %q", errTable, e.Path, list[i-1].Path)
		}
	}
	return nil
}

func checkEntry(e *manifestpb.Entry) error {
	if !ValidPath(e.Path) {
		return fmt.Errorf("%w: path %.200q", errTable, e.Path)
	}
	contents := len(e.Inline) > 0 || len(e.Segments) > 0
	switch e.Type {
	case manifestpb.Entry_REGULAR:
		return checkFile(e)
	case manifestpb.Entry_DIRECTORY:
		if e.Size != 0 || e.Zero != 0 || e.Target != "" || contents {
			return fmt.Errorf("%w: directory %s has contents", errTable, e.Path)
		}
	case manifestpb.Entry_SYMLINK:
		if !ValidTarget(e.Target) || e.Size != int64(len(e.Target)) || e.Zero != 0 || contents {
			return fmt.Errorf("%w: symlink %s to %.200q", errTable, e.Path, e.Target)
		}
	default:
		return fmt.Errorf("%w: %s is of type %d", errTable, e.Path, e.Type)
	}
	return nil
}

func checkFile(e *manifestpb.Entry) error {
	switch {
	case e.Size < 0 || e.Size > MaxFileSize || e.Zero < 0 || e.Zero > e.Size:
		return fmt.Errorf("%w: %s has %d bytes, %d of them zero", errTable, e.Path, e.Size, e.Zero)
	case e.Target != "":
		return fmt.Errorf("%w: file %s has a target", errTable, e.Path)
	case len(e.Inline) > MaxInline || len(e.Inline) > 0 && (int64(len(e.Inline)) != e.Size || len(e.Segments) > 0):
		return fmt.Errorf("%w: %s has %d of %d bytes", errTable, e.Path, len(e.Inline), e.Size)
	case len(e.Inline) == 0 && e.Size > 0 && (len(e.Segments) == 0 || e.Segments[0] != 0):
		return fmt.Errorf("%w: %s has no beginning", errTable, e.Path)
	}
	last := int64(-1)
	for _, s := range e.Segments {
		if s <= last || s >= e.Size {
			return fmt.Errorf("%w: %s has a segment at %d", errTable, e.Path, s)
		}
		last = s
	}
	return nil
}

// Table gathers the parts of a file table and holds them together: paths ascend, and whatever lies in a folder finds it
// there, as a folder. Writing the entries in their order then never goes through a symlink.
type Table struct {
	Entries []*manifestpb.Entry
	dirs    map[string]bool
}

// Add appends a decoded part.
func (t *Table) Add(part []*manifestpb.Entry) error {
	if len(t.Entries)+len(part) > MaxEntries {
		return fmt.Errorf("%w: more than %d entries", errTable, MaxEntries)
	}
	for i, e := range part {
		if k := len(t.Entries); i == 0 && k > 0 && e.Path <= t.Entries[k-1].Path {
			return fmt.Errorf("%w: %q follows %q", errTable, e.Path, t.Entries[k-1].Path)
		}
		if dir, ok := parent(e.Path); ok && !t.dirs[dir] {
			return fmt.Errorf("%w: %s lies in no folder", errTable, e.Path)
		}
		if e.Type == manifestpb.Entry_DIRECTORY {
			if t.dirs == nil {
				t.dirs = map[string]bool{}
			}
			t.dirs[e.Path] = true
		}
	}
	t.Entries = append(t.Entries, part...)
	return nil
}

// parent gives the folder of a path, false for one at the top.
func parent(p string) (string, bool) {
	for i := len(p) - 1; i > 0; i-- {
		if p[i] == '/' {
			return p[:i], true
		}
	}
	return "", false
}
