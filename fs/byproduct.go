package fs

import (
	"path"
	"strings"
	"syscall"
)

// statsDump is the file CRIU writes last, and only when a dump succeeded.
const statsDump = "stats-dump"

// byProduct says whether a file made in a draft is something CRIU or its callers leave beside the images and no restore
// reads. open flags and permissions are those of the creating call: CRIU's log is the one file it opens with O_APPEND,
// 0600, whatever its name (log.c, log_init). irmap-cache and stats-dump are not by-products: the next incremental dump
// reads the one, people and tools the other.
func byProduct(name string, flags, perm uint32) bool {
	base := path.Base(name)
	switch base {
	case "stats-restore", "pidfile":
		return true
	}
	switch path.Ext(base) {
	case ".log", ".pid", ".sock", ".socket":
		return true
	}
	return flags&syscall.O_APPEND != 0 && perm&0o777 == 0o600
}

// imageName says whether a file of this name is an image, which must never go to scratch.
func imageName(name string) bool { return strings.HasSuffix(name, ".img") }
