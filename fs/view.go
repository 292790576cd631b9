package fs

import (
	"path"
	"strings"
	"sync"
	"syscall"
)

// view is one place where an image directory is shown: the root, or .checkpoints/NAME. It holds the scratch layer of
// that place.
type view struct {
	s    *Server
	root bool
	name string   // below .checkpoints; "" for the root
	node *dirNode // of the root

	follow bool // the image changes with the checkpoint sealed last

	mu      sync.Mutex
	img     *image                  // nil when a following root has nothing to show
	gen     uint64                  // catalog generation at which img was chosen, in a following view
	pins    int                     // open handles of the directory: img stays
	scratch map[uint64]*scratchNode // by inode number of the directory it belongs to; 0 is the top
	gone    bool                    // so is the checkpoint: nothing new is made
	instead map[string]*insteadNode // see Instead; of the root of a private mount
	parent  bool                    // the same
}

// image gives what the view shows now.
func (v *view) image() (*image, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.imageLocked()
}

func (v *view) imageLocked() (*image, error) {
	if !v.follow || v.gen == v.s.cat.gen.Load() || v.pins > 0 && v.img != nil {
		return v.img, nil
	}
	img, gen, err := v.s.cat.latest()
	if err != nil {
		return nil, err
	}
	if v.img != nil && img != v.img {
		v.s.log.Info("the root shows a newer checkpoint", "checkpoint", nameOf(img), "before", v.img.name)
	}
	v.img, v.gen = img, gen
	return img, nil
}

func nameOf(img *image) string {
	if img == nil {
		return ""
	}
	return img.name
}

// pin keeps the image from changing until unpin.
func (v *view) pin() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, err := v.imageLocked()
	if err == nil {
		v.pins++
	}
	return err
}

func (v *view) unpin() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pins--
}

// scratchDir gives the scratch layer of content directory ino (0: the top of the view); nil when it has none and make
// is not set.
func (v *view) scratchDir(ino uint64, make bool) (*scratchNode, syscall.Errno) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if d := v.scratch[ino]; d != nil || !make {
		return d, 0
	}
	if v.gone {
		return nil, syscall.ENOENT
	}
	d, errno := v.s.scratch.newNode(syscall.S_IFDIR, 0o700, v.s.uid, v.s.gid, true)
	if errno != 0 {
		return nil, errno
	}
	v.scratch[ino] = d
	return d, 0
}

// drop frees the scratch layer of a place that is gone.
func (v *view) drop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gone = true
	for _, d := range v.scratch {
		d.drop()
	}
	clear(v.scratch)
}

// dropOf frees what lies in the folders of a checkpoint that is gone, in a view that showed it and others.
func (v *view) dropOf(img *image) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for ino, d := range v.scratch {
		if ino != 0 && ino&^maxIdx == img.base {
			d.drop()
			delete(v.scratch, ino)
		}
	}
}

// parentTarget is what the parent link of an image reads as, seen from this view.
func (v *view) parentTarget(name string) string {
	if v.root {
		return topName + "/" + name
	}
	return "../" + name
}

// parentOf finds the checkpoint that a parent link with this target, made in the top directory of the view, leads to.
// It must lie in this mount: the store cannot vouch for anything else.
func (v *view) parentOf(target string) (string, error) {
	var p string
	switch {
	case path.IsAbs(target):
		rest, ok := strings.CutPrefix(path.Clean(target)+"/", v.s.dir+"/")
		if !ok {
			return "", outside(target)
		}
		p = path.Clean("/" + rest)
	case v.root:
		p = path.Clean("/" + target)
		if strings.HasPrefix(path.Clean(target), "..") {
			return "", outside(target)
		}
	default:
		rel := path.Join(topName, v.name, target)
		if strings.HasPrefix(rel, "..") {
			return "", outside(target)
		}
		p = "/" + rel
	}
	if p == "/" || p == "/." {
		img, err := v.s.root.image()
		if err != nil {
			return "", err
		}
		if img == nil {
			return "", syscall.ENOENT
		}
		return img.name, nil
	}
	name, ok := strings.CutPrefix(p, "/"+topName+"/")
	if !ok || strings.Contains(name, "/") {
		return "", outside(target)
	}
	return name, nil
}

func outside(target string) error {
	return &linkError{target}
}

// linkError is a parent link that leads out of the mount.
type linkError struct{ target string }

func (e *linkError) Error() string {
	return "parent link " + e.target + " does not lead to a checkpoint of this store"
}

func (e *linkError) Unwrap() error { return syscall.EXDEV }

// shows says whether the view shows img now.
func (v *view) shows(img *image) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.img == img
}
