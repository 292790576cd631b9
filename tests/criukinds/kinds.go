// Package criukinds is a table of what CRIU's images may hold, as of 4.2 and of its
// development branch, and of what they may hold one day: flags, kinds of files,
// states of tasks, fields. Each is given as a set of images, for tests to put through
// whatever reads images. Sources, below CRIU's tree: criu/include/image.h (VMA
// states), pagemap.h (flags of page runs), image-desc.h, compel's task-state.h, and
// the messages below images/.
package criukinds

import (
	"encoding/binary"
	"fmt"
	"testing/fstest"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Kind is one thing that images may hold.
type Kind struct {
	Name   string
	Images fstest.MapFS
	// Refused is what the refusal to bring the memory on demand has to say, "" where
	// it is to be brought as without the thing: all of [Start, End).
	Refused string
}

// PID is the one task of all images; [Start, End) is its lazy memory, of which the
// first pages of pages-1.img are the contents.
const (
	PID   = 7
	Start = 16 << 12
	End   = 24 << 12
)

// Images' magic numbers.
const (
	common      = 0x54564319
	inventoryID = 0x58313116
	pstreeID    = 0x50273030
	coreID      = 0x55053847
	mmID        = 0x57492820
	pagemapID   = 0x56084025
	filesID     = 0x56303138
)

// strange is a field that no message has.
var strange = protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1)

// parts make a set of images.
type parts struct {
	inventory *inventory.InventoryEntry
	core      *criucore.CoreEntry
	vmas      []*vma.VmaEntry
	runs      []*pagemap.PagemapEntry
	files     []*fdinfo.FileEntry
	// field: every message has one more.
	field bool
}

func u(n uint32) *uint32 { return &n }

// plain is an ordinary task.
func plain() *parts {
	return &parts{
		inventory: &inventory.InventoryEntry{ImgVersion: u(2)},
		core: &criucore.CoreEntry{Mtype: criucore.CoreEntry_X86_64.Enum(),
			Tc: &criucore.TaskCoreEntry{TaskState: u(1), Comm: proto.String("task")}},
		vmas:  []*vma.VmaEntry{area(Start, End, 1|1<<9)},
		runs:  []*pagemap.PagemapEntry{run(Start, (End-Start)>>12, 2|4)},
		files: []*fdinfo.FileEntry{{Type: fdinfo.FdTypes_REG.Enum(), Id: u(1)}},
	}
}

// area is private anonymous memory with CRIU's status.
func area(start, end uint64, status uint32) *vma.VmaEntry {
	return &vma.VmaEntry{Start: &start, End: &end, Pgoff: proto.Uint64(0), Shmid: proto.Uint64(0), Prot: u(3),
		Flags:  u(0x22),
		Status: &status, Fd: proto.Int64(-1)}
}

func run(start, pages uint64, flags uint32) *pagemap.PagemapEntry {
	return &pagemap.PagemapEntry{Vaddr: &start, CompatNrPages: u(0), NrPages: &pages, Flags: &flags}
}

// images writes the parts down as CRIU does.
func (p *parts) images() fstest.MapFS {
	file := func(magic uint32, messages ...proto.Message) *fstest.MapFile {
		var b []byte
		if magic != inventoryID {
			b = binary.LittleEndian.AppendUint32(b, common)
		}
		b = binary.LittleEndian.AppendUint32(b, magic)
		for _, m := range messages {
			if p.field {
				m.ProtoReflect().SetUnknown(strange)
			}
			body, err := (proto.MarshalOptions{AllowPartial: true}).Marshal(m)
			if err != nil {
				panic(err) // no message of these has what cannot be written
			}
			b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
			b = append(b, body...)
		}
		return &fstest.MapFile{Data: b, Mode: 0o600}
	}
	z := proto.Uint64(0)
	pages := []proto.Message{&pagemap.PagemapHead{PagesId: u(1)}}
	for _, r := range p.runs {
		pages = append(pages, r)
	}
	var files []proto.Message
	for _, f := range p.files {
		files = append(files, f)
	}
	return fstest.MapFS{
		"inventory.img": file(inventoryID, p.inventory),
		"pstree.img": file(pstreeID,
			&pstree.PstreeEntry{Pid: u(PID), Ppid: u(0), Pgid: u(PID), Sid: u(PID), Threads: []uint32{PID}}),
		fmt.Sprintf("core-%d.img", PID): file(coreID, p.core),
		fmt.Sprintf("mm-%d.img", PID): file(mmID,
			&mm.MmEntry{MmStartCode: z, MmEndCode: z, MmStartData: z, MmEndData: z, MmStartStack: z,
				MmStartBrk: z, MmBrk: z, MmArgStart: z, MmArgEnd: z, MmEnvStart: z, MmEnvEnd: z, ExeFileId: u(1),
				Vmas: p.vmas}),
		fmt.Sprintf("pagemap-%d.img", PID): file(pagemapID, pages...),
		"pages-1.img":                      &fstest.MapFile{Data: make([]byte, 16<<12), Mode: 0o600},
		"files.img":                        file(filesID, files...),
	}
}

// All is the table.
func All() []Kind {
	list := []Kind{{Name: "plain", Images: plain().images()}}
	add := func(name, refused string, change func(*parts)) {
		p := plain()
		change(p)
		list = append(list, Kind{name, p.images(), refused})
	}
	addVMAs(add)
	addRuns(add)
	addRest(add)
	return list
}
