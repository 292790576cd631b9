package archive

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/gpucr/gpucr-fs/index"
)

const (
	maxPath = 4095 // bytes, Linux PATH_MAX without the final NUL
	maxName = 255  // bytes, Linux NAME_MAX
	// reserved is the folder in which a mount shows all checkpoints; a member of that name could not be reached.
	reserved = ".checkpoints"
)

// cleanName turns a member's name into a path within the tree, "." for its root.
func cleanName(raw string) (string, error) {
	show := fmt.Sprintf("%.200q", raw)
	switch {
	case raw == "":
		return "", refuse("", "", "a member has no name")
	case !utf8.ValidString(raw) || strings.ContainsRune(raw, 0):
		return "", refuse("", "rename the file", "member %s: the name is not valid UTF-8", show)
	case strings.HasPrefix(raw, "/"):
		return "", refuse("", "make the archive with relative names", "member %s: absolute names are refused", show)
	case len(raw) > maxPath:
		return "", refuse("", "", "member %s…: the name is longer than %d bytes", show, maxPath)
	}
	for _, c := range strings.Split(raw, "/") {
		if c == ".." {
			return "", refuse("", "", "member %s: names with \"..\" are refused", show)
		}
		if len(c) > maxName {
			return "", refuse("", "", "member %s…: an element of the name is longer than %d bytes", show, maxName)
		}
	}
	p := path.Clean(raw)
	if p == reserved || strings.HasPrefix(p, reserved+"/") {
		return "", refuse(p, "", "the name %s is reserved for the mount", reserved)
	}
	return p, nil
}

// checkTarget refuses link targets that lead out of the tree. Links within the tree may be chained, so the lexical rule
// must hold at every hop: ".." only at the start, and no more of them than the link's own folder is deep. From a real
// directory that stays inside, whatever the later elements are.
func checkTarget(link, target string) error {
	if target == "" || len(target) > maxPath || !utf8.ValidString(target) || strings.ContainsRune(target, 0) {
		return refuse(link, "", "the target of the symbolic link cannot be used")
	}
	if strings.HasPrefix(target, "/") {
		return refuse(link, "", "symbolic link to %.200q leads out of the tree", target)
	}
	depth := strings.Count(link, "/")
	down := false
	for _, c := range strings.Split(target, "/") {
		switch {
		case c == "" || c == ".":
		case c != "..":
			down = true
		case down:
			return refuse(link, "", "symbolic link to %.200q climbs after descending", target)
		default:
			if depth--; depth < 0 {
				return refuse(link, "", "symbolic link to %.200q leads out of the tree", target)
			}
		}
	}
	return nil
}

// isParentLink tells the link that CRIU makes for --prev-images-dir: at the top of an image directory, or in the folder
// that podman keeps the images in.
func isParentLink(p string) bool { return p == "parent" || p == "checkpoint/parent" }

// parentName guesses the checkpoint that a parent link stands for.
func parentName(target string) string {
	base := path.Base(path.Clean(target))
	if base == "checkpoint" || base == "pre-checkpoint" {
		base = path.Base(path.Dir(path.Clean(target)))
	}
	return base
}

// parentTarget is what a parent link at p points to, so that it holds in the mount and beside exported siblings: from
// the link's folder up past the root of its own checkpoint, then into the folder of the parent's images.
func parentTarget(p, parent, images string) string {
	return path.Join(strings.Repeat("../", strings.Count(p, "/")+1), parent, images)
}

func parentError(link, name string, err error) error {
	if index.ClassOf(err) != index.NotFound && index.ClassOf(err) != index.Invalid {
		return err
	}
	return &index.Error{Class: index.NotFound, Op: "import", File: link,
		Hint: "import the parent first, or name it with --parent NAME",
		Err:  fmt.Errorf("this is an incremental dump; its parent %.200q is not a checkpoint of this store", name)}
}
