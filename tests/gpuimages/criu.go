package gpuimages

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corex86 "github.com/checkpoint-restore/go-criu/v8/crit/images/core-x86"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"google.golang.org/protobuf/proto"
)

// Magic numbers of images, as in CRIU's magic.h.
const (
	magicCommon    = 0x54564319
	magicInventory = 0x58313116
	magicPstree    = 0x50273030
	magicCore      = 0x55053847
	magicMM        = 0x57492820
	magicPagemap   = 0x56084025
)

// WriteCRIU writes the images of CRIU's that tell of a task: one with this pid, memory in bytes, and components of the
// extended CPU state in use. They are enough to be looked at, not to be restored.
func WriteCRIU(dir string, pid uint32, memory int64, xstate uint64) error {
	alive, name := uint32(1), "gpuapp"
	x86 := &corex86.ThreadInfoX86{
		Fpregs: &corex86.UserX86FpregsEntry{Xsave: &corex86.UserX86XsaveEntry{XstateBv: &xstate}},
	}
	pages := uint64(memory / 4096)
	return errors.Join(
		write(dir, "inventory.img", magicInventory,
			&inventory.InventoryEntry{ImgVersion: proto.Uint32(2), DumpCriuRunId: proto.String("made"),
				PluginsEntry: &inventory.PluginsEntry{Plugins: []string{"amdgpu_plugin"}}}),
		write(dir, "pstree.img", magicPstree,
			&pstree.PstreeEntry{Pid: &pid, Ppid: proto.Uint32(0), Pgid: &pid, Sid: &pid, Threads: []uint32{pid}}),
		write(dir, fmt.Sprintf("core-%d.img", pid), magicCore,
			&criucore.CoreEntry{Mtype: criucore.CoreEntry_X86_64.Enum(), ThreadInfo: x86,
				Tc: &criucore.TaskCoreEntry{TaskState: &alive, Comm: &name}}),
		write(dir, fmt.Sprintf("mm-%d.img", pid), magicMM, &mm.MmEntry{}),
		write(dir, fmt.Sprintf("pagemap-%d.img", pid), magicPagemap, &pagemap.PagemapHead{PagesId: proto.Uint32(1)},
			&pagemap.PagemapEntry{Vaddr: proto.Uint64(0x10000), CompatNrPages: proto.Uint32(0), NrPages: &pages,
				Flags: proto.Uint32(4)}))
}

// write frames messages as CRIU does.
func write(dir, name string, magic uint32, messages ...proto.Message) error {
	var b []byte
	if magic != magicInventory {
		b = binary.LittleEndian.AppendUint32(b, magicCommon)
	}
	b = binary.LittleEndian.AppendUint32(b, magic)
	for _, m := range messages {
		body, err := (proto.MarshalOptions{AllowPartial: true}).Marshal(m)
		if err != nil {
			return err
		}
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(body))), body...)
	}
	return os.WriteFile(filepath.Join(dir, name), b, 0o600)
}
