package fs

import (
	"syscall"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
)

// What is kept of checkpoints at hand, in files of those used last. One that the kernel knows costs some 700 bytes here
// and as much in the kernel, and with it the kernel keeps the pages that were read. One of a loaded table costs 300
// bytes, and up to 4 KiB if its contents lie in the table.
const (
	warmFiles   = 16 << 10 // of checkpoints whose files the kernel is not asked to forget
	loadedFiles = 4 << 10  // of checkpoints whose table is kept
)

// tidyPause is how long the janitor rests between two rounds.
const tidyPause = time.Second

// tidy frees the scratch of checkpoints that are gone, and keeps what the daemon holds from growing with the number of
// checkpoints that were looked at: the kernel keeps every name it has seen, and with it a node here, for as long as it
// has memory. It ends when stop is closed.
func (s *Server) tidy(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-s.cat.tidyRequested:
		}
		s.tidyOnce()
		select {
		case <-stop:
			return
		case <-time.After(tidyPause):
		}
	}
}

func (s *Server) tidyOnce() {
	for _, img := range s.cat.drainRemoved() {
		s.viewOf(img).drop()
		s.root.dropOf(img)
		s.forget(img, true)
	}
	files := 0
	for _, img := range s.cat.warm() {
		img.mu.RLock()
		files += max(img.files, 1)
		img.mu.RUnlock()
		if files > loadedFiles {
			img.unload()
		}
		if files > warmFiles {
			img.used.Store(0)
			s.forget(img, false)
		}
	}
}

// forget asks the kernel to forget the files of an image, save those in use. gone says that the checkpoint is gone.
// Call without locks: the kernel may wait for requests that are under way.
func (s *Server) forget(img *image, gone bool) {
	var dirs, nodes []*gofs.Inode
	dir := s.top.GetChild(img.name)
	if dir != nil {
		if d, ok := dir.Operations().(*dirNode); !ok || d.v.img != img {
			dir = nil
		}
	}
	if dir != nil {
		dirs = append(dirs, dir)
	}
	for _, ch := range s.root.node.Children() { // what was seen through the root
		if f, ok := ch.Operations().(*fileNode); ok && f.e.img == img {
			nodes = append(nodes, ch)
		}
	}
	for i := 0; i < len(dirs); i++ {
		for _, ch := range dirs[i].Children() {
			if ch.IsDir() {
				dirs = append(dirs, ch)
			} else {
				nodes = append(nodes, ch)
			}
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- { // those within before those around
		nodes = append(nodes, dirs[i])
	}
	if len(nodes) > 0 && s.root.node.NotifyPrune(nodes) == syscall.ENOSYS && dir != nil {
		s.forgetNames(img, dirs, gone)
	}
}

// forgetNames is for kernels without FUSE_NOTIFY_PRUNE (before Linux 6.18): they forget a name, and what is in use is
// called deleted by /proc. So only files that nobody has open are named, and directories only when they are.
func (s *Server) forgetNames(img *image, dirs []*gofs.Inode, gone bool) {
	if gone {
		s.top.NotifyEntry(img.name)
		return
	}
	open := s.openFiles()
	for _, d := range dirs {
		for name, ch := range d.Children() {
			switch f := ch.Operations().(type) {
			case *fileNode:
				if !open[f.e.ino] {
					d.NotifyEntry(name)
				}
			case *linkNode, *parentNode:
				d.NotifyEntry(name)
			}
		}
	}
}

// openFiles gives the inode numbers of content that somebody has open.
func (s *Server) openFiles() map[uint64]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := map[uint64]bool{}
	for h := range s.handles {
		switch h := h.(type) {
		case *sealedHandle:
			open[h.ino] = true
		case *draftHandle:
			open[h.e.ino] = true
		}
	}
	return open
}
