// Package inspect tells what a CRIU image directory holds, for people: the process tree with names and threads, the
// memory of every process, what the dump cost.
//
// It reads through an io/fs.FS, so the images may lie in a store. They are input from outside: sizes are not trusted
// before the bytes behind them were read, the number of processes and of bytes read is bounded, and a malformed image
// is an error that names it. Images that only add detail (statistics, file names) may be missing.
package inspect

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/checkpoint-restore/go-criu/v8/crit"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/stats"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/bounded"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

const (
	pageSize = 4096
	// the kernel's default pid_max is 2^15 or 2^22; a tree of this size cannot be frozen in any useful time
	maxProcesses = 1 << 16
	maxEntry     = 64 << 20  // bytes of one message; the largest is a task's list of mappings
	maxTotal     = 512 << 20 // bytes read for one report
)

// Magic numbers of images, as in CRIU's magic.h.
const (
	magicCommon    = 0x54564319
	magicService   = 0x55105940
	magicInventory = 0x58313116
	magicPstree    = 0x50273030
	magicCore      = 0x55053847
	magicMM        = 0x57492820
	magicPagemap   = 0x56084025
	magicFiles     = 0x56303138
	magicStats     = 0x57093306
)

// Flags of a run of pages in a pagemap image.
const (
	flagParent  = 1 << 0
	flagLazy    = 1 << 1
	flagPresent = 1 << 2
)

// vmaGuard marks what is no mapping but guard pages within one, from CRIU's image.h.
const vmaGuard = 1 << 16

// Report is what an image directory says.
type Report struct {
	Dir          string     `json:"dir"`              // of the images within the checkpoint, "." for its root
	ImageVersion uint32     `json:"image_version"`    // of CRIU's format
	RunID        string     `json:"run_id,omitempty"` // of the criu that dumped
	Arch         string     `json:"arch,omitempty"`
	LSM          string     `json:"lsm,omitempty"`
	Plugins      []string   `json:"plugins,omitempty"` // that the dump used and a restore needs
	Processes    []*Process `json:"processes"`         // roots of the tree
	Total        Memory     `json:"total"`
	Dump         *Dump      `json:"dump,omitempty"`
}

// Process is one task of the tree.
type Process struct {
	PID      uint32     `json:"pid"` // in its own pid namespace
	PPID     uint32     `json:"ppid"`
	PGID     uint32     `json:"pgid"`
	SID      uint32     `json:"sid"`
	Comm     string     `json:"comm"`
	Exe      string     `json:"exe,omitempty"`
	State    string     `json:"state"`
	Threads  []uint32   `json:"threads"`
	Memory   *Memory    `json:"memory,omitempty"` // nil for a task that is no longer alive
	Children []*Process `json:"children,omitempty"`
}

// Memory counts bytes of private memory.
type Memory struct {
	Mapped  uint64 `json:"mapped"`  // all mappings
	VMAs    int    `json:"vmas"`    // mappings
	Present uint64 `json:"present"` // stored in PagesFile
	Lazy    uint64 `json:"lazy"`    // of Present: may be left to a lazy-pages server
	Parent  uint64 `json:"parent"`  // stored in a parent of an incremental dump
	// of Present: zero pages; filled in by those who know the file's extents
	Zero  uint64 `json:"zero"`
	Pages string `json:"pages_file,omitempty"` // the image that holds Present, within the checkpoint
}

// Dump is what the dump cost.
type Dump struct {
	Freezing     time.Duration `json:"freezing_ns"` // until all tasks stood still
	Frozen       time.Duration `json:"frozen_ns"`   // how long they stood still
	MemDump      time.Duration `json:"mem_dump_ns"`
	MemWrite     time.Duration `json:"mem_write_ns"`
	PagesScanned uint64        `json:"pages_scanned"`
	PagesParent  uint64        `json:"pages_skipped_parent"`
	PagesWritten uint64        `json:"pages_written"`
	PagesLazy    uint64        `json:"pages_lazy"`
}

// Find gives the folder of fsys that holds CRIU images: its root, or where podman and the kubelet put them. False when
// there are none.
func Find(fsys fs.FS) (string, bool) {
	for _, dir := range []string{".", "checkpoint", "pre-checkpoint"} {
		if _, err := fs.Stat(fsys, path.Join(dir, "inventory.img")); err == nil {
			return dir, true
		}
	}
	return "", false
}

// Read reports on the images in the folder dir of fsys.
func Read(fsys fs.FS, dir string) (*Report, error) {
	i := &images{fsys: fsys, dir: dir, left: maxTotal, buf: make([]byte, 4<<10)}
	r := &Report{Dir: dir, Processes: []*Process{}}
	var inv inventory.InventoryEntry
	if err := i.one("inventory.img", magicInventory, &inv); err != nil {
		return nil, err
	}
	r.ImageVersion, r.RunID, r.Plugins = inv.GetImgVersion(), inv.GetDumpCriuRunId(), inv.GetPluginsEntry().GetPlugins()
	if inv.Lsmtype != nil && inv.GetLsmtype() != inventory.Lsmtype_NO_LSM {
		r.LSM = inv.GetLsmtype().String()
	}
	if err := i.tree(r); err != nil {
		return nil, err
	}
	var s stats.StatsEntry
	switch err := i.one("stats-dump", magicStats, &s); {
	case err == nil && s.GetDump() != nil:
		r.Dump = dumpOf(s.GetDump())
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return r, nil
}

func dumpOf(d *stats.DumpStatsEntry) *Dump {
	us := func(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }
	return &Dump{
		Freezing:     us(d.GetFreezingTime()),
		Frozen:       us(d.GetFrozenTime()),
		MemDump:      us(d.GetMemdumpTime()),
		MemWrite:     us(d.GetMemwriteTime()),
		PagesScanned: d.GetPagesScanned(),
		PagesParent:  d.GetPagesSkippedParent(),
		PagesWritten: d.GetPagesWritten(),
		PagesLazy:    d.GetPagesLazy(),
	}
}

// images reads one image directory.
type images struct {
	fsys fs.FS
	dir  string
	left int64 // bytes that may still be read
	buf  []byte
}

func (i *images) tree(r *Report) error {
	byPID := map[uint32]*Process{}
	var order []*Process
	err := i.each(
		"pstree.img",
		magicPstree,
		func() proto.Message { return &pstree.PstreeEntry{} },
		func(m proto.Message) error {
			e := m.(*pstree.PstreeEntry)
			if len(order) == maxProcesses {
				return corrupt("pstree.img", "more than %d processes", maxProcesses)
			}
			if byPID[e.GetPid()] != nil {
				return corrupt("pstree.img", "process %d appears twice", e.GetPid())
			}
			p := &Process{
				PID:     e.GetPid(),
				PPID:    e.GetPpid(),
				PGID:    e.GetPgid(),
				SID:     e.GetSid(),
				Threads: e.GetThreads(),
			}
			byPID[p.PID] = p
			order = append(order, p)
			return nil
		},
	)
	if err != nil {
		return err
	}
	exes := map[uint32][]*Process{} // by the id of their program's file
	seen := map[*Process]bool{}
	for _, p := range order {
		if err := i.process(r, p, exes); err != nil {
			return err
		}
		// CRIU writes parents before children. Holding it to that rules out cycles.
		if parent := byPID[p.PPID]; seen[parent] {
			parent.Children = append(parent.Children, p)
		} else {
			r.Processes = append(r.Processes, p)
		}
		seen[p] = true
	}
	return i.files(exes)
}

// process adds what core, mm and pagemap say.
func (i *images) process(r *Report, p *Process, exes map[uint32][]*Process) error {
	var core criucore.CoreEntry
	if err := i.one(fmt.Sprintf("core-%d.img", p.PID), magicCore, &core); err != nil {
		return err
	}
	if r.Arch == "" {
		r.Arch = core.GetMtype().String()
	}
	state := crit.TaskState(core.GetTc().GetTaskState())
	p.Comm, p.State = core.GetTc().GetComm(), state.String()
	if !state.IsAliveOrStopped() {
		return nil
	}
	m := &Memory{}
	exe, err := i.mappings(p.PID, m)
	if err != nil {
		return err
	}
	exes[exe] = append(exes[exe], p)
	if err := i.pagemap(p.PID, m); err != nil {
		return err
	}
	p.Memory = m
	r.Total.Mapped += m.Mapped
	r.Total.VMAs += m.VMAs
	r.Total.Present += m.Present
	r.Total.Lazy += m.Lazy
	r.Total.Parent += m.Parent
	return nil
}

// mappings adds up a process's mappings, one at a time: a process may have a million of them. It gives the id of its
// program's file.
func (i *images) mappings(pid uint32, m *Memory) (exe uint32, err error) {
	name := fmt.Sprintf("mm-%d.img", pid)
	found := false
	err = i.raw(name, magicMM, func(b []byte) error {
		found = true
		var err error
		exe, err = criuimg.Mappings(name, b, func(v criuimg.VMA, _ bool) error {
			if v.Status&vmaGuard == 0 {
				m.VMAs++
				m.Mapped += v.End - v.Start
			}
			return nil
		})
		if err != nil {
			return err
		}
		return io.EOF
	})
	if err == nil && !found {
		err = corrupt(name, "no entry")
	}
	return exe, err
}

func (i *images) pagemap(pid uint32, m *Memory) error {
	name := fmt.Sprintf("pagemap-%d.img", pid)
	head := true
	return i.each(name, magicPagemap, func() proto.Message {
		if head {
			return &pagemap.PagemapHead{}
		}
		return &pagemap.PagemapEntry{}
	}, func(msg proto.Message) error {
		if h, ok := msg.(*pagemap.PagemapHead); ok {
			head = false
			m.Pages = path.Join(i.dir, fmt.Sprintf("pages-%d.img", h.GetPagesId()))
			return nil
		}
		e := msg.(*pagemap.PagemapEntry)
		n, flags := e.GetNrPages(), e.GetFlags()
		if e.NrPages == nil {
			n = uint64(e.GetCompatNrPages()) // written by a criu before 4.1
		}
		if e.Flags == nil { // written by a criu before 2.12, which knew no flags
			flags = flagPresent
			if e.GetInParent() {
				flags = flagParent
			}
		}
		if n > 1<<40 {
			return corrupt(name, "a run of %d pages", n)
		}
		switch bytes := n * pageSize; {
		case flags&flagPresent != 0:
			m.Present += bytes
			if flags&flagLazy != 0 {
				m.Lazy += bytes
			}
		case flags&flagParent != 0:
			m.Parent += bytes
		}
		return nil
	})
}

// files gives processes the names of their programs; none when the image is missing.
func (i *images) files(exes map[uint32][]*Process) error {
	err := i.each(
		"files.img",
		magicFiles,
		func() proto.Message { return &fdinfo.FileEntry{} },
		func(m proto.Message) error {
			if e := m.(*fdinfo.FileEntry); e.GetReg() != nil {
				for _, p := range exes[e.GetId()] {
					p.Exe = e.GetReg().GetName()
				}
				delete(exes, e.GetId())
			}
			return nil
		},
	)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

func corrupt(name, format string, a ...any) error {
	return fmt.Errorf("%s: not a valid criu image: %w", name, fmt.Errorf(format, a...))
}

// one reads the first entry of an image.
func (i *images) one(name string, magic uint32, m proto.Message) error {
	found := false
	err := i.each(name, magic, func() proto.Message { return m }, func(proto.Message) error {
		found = true
		return io.EOF
	})
	if err == nil && !found {
		return corrupt(name, "no entry")
	}
	return err
}

// each calls f for the entries of an image, each decoded into what next gives; f ends the reading early with io.EOF.
func (i *images) each(name string, magic uint32, next func() proto.Message, f func(proto.Message) error) error {
	return i.raw(name, magic, func(b []byte) error {
		m := next()
		// One entry at a time is in memory.
		if err := new(bounded.Budget).Unmarshal(proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true},
			b, m); err != nil {
			return corrupt(name, "%w", err)
		}
		return f(m)
	})
}

// raw calls f for the entries of an image as they are; f ends the reading early with io.EOF.
func (i *images) raw(name string, magic uint32, f func([]byte) error) error {
	file, err := i.fsys.Open(path.Join(i.dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return err
	}
	there := min(st.Size(), i.left)
	r := bufio.NewReader(io.LimitReader(file, i.left))
	if err := header(r, name, magic); err != nil {
		return err
	}
	for {
		b, err := i.entry(r, name, there)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(b); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// header checks an image's magic numbers: one for the inventory, a common and a specific one for the others.
func header(r *bufio.Reader, name string, magic uint32) error {
	got, err := u32(r)
	if err == nil && magic != magicInventory {
		want := uint32(magicCommon)
		if magic == magicStats {
			want = magicService
		}
		if got != want {
			return corrupt(name, "it begins with %#x", got)
		}
		got, err = u32(r)
	}
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return corrupt(name, "it ends in its header")
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case got != magic:
		return corrupt(name, "its type is %#x instead of %#x", got, magic)
	}
	return nil
}

// entry reads one length and as many bytes, which are valid until the next call; io.EOF at the end of the image, which
// has size bytes.
func (i *images) entry(r *bufio.Reader, name string, size int64) ([]byte, error) {
	n, err := u32(r)
	if err == io.EOF {
		return nil, io.EOF
	}
	if err == nil && (n > maxEntry || int64(n) > i.left) {
		return nil, corrupt(name, "an entry of %d bytes", n)
	}
	var b []byte
	if err == nil {
		// No more than there is, so a lying length costs nothing.
		if want := min(int64(n), size); want <= int64(cap(i.buf)) {
			b = i.buf[:want]
		} else {
			b = make([]byte, want)
		}
		var k int
		if k, err = io.ReadFull(r, b); err == io.EOF && n > 0 || err == nil && k < int(n) {
			err = io.ErrUnexpectedEOF
		}
	}
	if err == io.ErrUnexpectedEOF {
		return nil, corrupt(name, "it ends within an entry")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	i.left -= int64(n) + 4
	return b, nil
}

func u32(r io.Reader) (uint32, error) {
	var b [4]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b[:]), nil
}
