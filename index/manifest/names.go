package manifest

import (
	"crypto/rand"
	"encoding/hex"
	"path"
	"regexp"
	"strings"
)

// Rules for names of files, checkpoints and folders on the way out of a store. They are checked when a name is made and
// when one is read, so a name from a manifest can be used as a path or a key without another check.
const (
	MaxPath = 4095 // bytes of a path and of a symlink's target: PATH_MAX without the final NUL
	MaxName = 255  // bytes of one element of a path: NAME_MAX
	// MaxLabel is the length of a checkpoint's name and of a tag in bytes.
	MaxLabel = 128

	idDigits = 16
)

// NewID gives the identity of a new checkpoint.
func NewID() string {
	var b [idDigits / 2]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// ValidID says whether id has the form of a checkpoint's identity: 16 lower-case hex digits. It names files of the
// store, so nothing else may pass.
func ValidID(id string) bool {
	return len(id) == idDigits && strings.Trim(id, "0123456789abcdef") == ""
}

// namePattern takes what engines and their users put into names: times ("2026-01-02T15:04:05+01:00"), image references
// ("web:3", "app@sha256"), units ("web@1"), Debian's versions ("1:2.3+dfsg-1~rc1"), settings ("mem=2"), escapes
// ("%2F"). A comma stands between tags on the command line.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._+:@=~%-]*$`)

// ValidName says whether name can be that of a checkpoint or a tag that is there. Not each of them may be chosen for
// another one.
func ValidName(name string) bool { return len(name) <= MaxLabel && namePattern.MatchString(name) }

// ValidPath says whether p is a clean, relative, slash-separated path that stays below its root, and no longer than the
// kernel takes.
func ValidPath(p string) bool {
	if p == "" || len(p) > MaxPath || p == "." || p == ".." || strings.HasPrefix(p, "../") || p[0] == '/' {
		return false
	}
	if path.Clean(p) != p || strings.IndexByte(p, 0) >= 0 {
		return false
	}
	for e := range strings.SplitSeq(p, "/") {
		if len(e) > MaxName {
			return false
		}
	}
	return true
}

// ValidTarget says whether t can be a symlink's target.
func ValidTarget(t string) bool {
	return t != "" && len(t) <= MaxPath && strings.IndexByte(t, 0) < 0
}
