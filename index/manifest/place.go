package manifest

import (
	"fmt"
	"strings"
)

// Where the records of one checkpoint are kept in the index and told in the journals: the prefix that says what it is,
// the checkpoint's id, and what of it. Everything but the root means nothing without the root.
const (
	RootPrefix    = "ckpt/"
	TablePrefix   = "files/"
	SegmentPrefix = "seg/"
	ProfilePrefix = "prof/"
)

// RootKey is the key of the root record of a checkpoint.
func RootKey(id string) string { return RootPrefix + id }

// TableKey is the key of a part of the table of files.
func TableKey(id string, part int) string { return fmt.Sprintf("%s%s/%06d", TablePrefix, id, part) }

// SegmentKey is the key of the segment that begins at byte start of a file.
func SegmentKey(id string, file uint32, start int64) string {
	return fmt.Sprintf("%s%s/%06d/%016x", SegmentPrefix, id, file, start)
}

// ProfileKey is the key of what was learnt when a checkpoint was restored.
func ProfileKey(id string) string { return ProfilePrefix + id }

// IsRootKey says whether a key is that of a root record.
func IsRootKey(key string) bool { return strings.HasPrefix(key, RootPrefix) }

// OwnerOf gives the id of the checkpoint a key belongs to.
func OwnerOf(key string) string {
	_, rest, _ := strings.Cut(key, "/")
	id, _, _ := strings.Cut(rest, "/")
	return id
}
