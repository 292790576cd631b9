package criukinds

import (
	"fmt"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"google.golang.org/protobuf/proto"
)

type adder func(name, refused string, change func(*parts))

const notKnown = "not known to this version"

// vmaStates are the bits of a VMA's status. Bits without a name are refused by number.
var vmaStates = [32]string{
	0: "REGULAR", 1: "STACK", 2: "VSYSCALL", 3: "VDSO", 4: "FORCE_READ", 5: "HEAP", 6: "FILE_PRIVATE", 7: "FILE_SHARED",
	8: "ANON_SHARED", 9: "ANON_PRIVATE",
	10: "SYSVIPC", 11: "SOCKET", 12: "VVAR", 13: "AIORING", 14: "MEMFD", 15: "SHSTK", 16: "GUARD", 17: "UPROBES",
	27: "EXT_PLUGIN", 28: "CLOSE", 29: "NO_PROT_WRITE", 30: "PREMMAPED",
}

func addVMAs(add adder) {
	const elsewhere = End + 1<<20
	for bit, name := range vmaStates {
		status, refused := uint32(1)<<bit, ""
		if name == "" {
			name, refused = "unknown", fmt.Sprintf("vma flag 1<<%d at %#x: %s", bit, elsewhere, notKnown)
		}
		add(fmt.Sprintf("vma status %d %s", bit, name), refused,
			func(p *parts) { p.vmas = append(p.vmas, area(elsewhere, elsewhere+1<<12, status)) })
	}
	// Guards are behind all real VMAs, within them.
	add("guards", "", func(p *parts) {
		p.vmas = append(p.vmas, area(End, End+8<<12, 1|1<<9), area(End+1<<12, End+2<<12, 1<<16),
			area(End+3<<12, End+4<<12, 1<<16))
	})
	add("a guard before everything", "", func(p *parts) { p.vmas = append(p.vmas, area(1<<12, 2<<12, 1<<16)) })
	add("lazy pages of a shadow stack", "of a shadow stack", func(p *parts) {
		p.vmas = append(p.vmas, area(elsewhere, elsewhere+1<<12, 1|1<<9|1<<15))
		p.runs = append(p.runs, run(elsewhere, 1, 2|4))
	})
	// What mmap and madvise know is CRIU's and the kernel's affair.
	for bit := range 32 {
		add(fmt.Sprintf("mmap flag %d", bit), "", func(p *parts) {
			v := area(elsewhere, elsewhere+1<<12, 1|1<<9)
			v.Flags = u(*v.Flags | 1<<bit)
			p.vmas = append(p.vmas, v)
		})
	}
	for bit := range 64 {
		add(fmt.Sprintf("advice %d", bit), "", func(p *parts) { p.vmas[0].Madv = proto.Uint64(1 << bit) })
	}
}

// addRuns adds flags of page runs: PARENT, LAZY and PRESENT are known.
func addRuns(add adder) {
	for bit := 3; bit < 32; bit++ {
		add(fmt.Sprintf("page run flag %d", bit), fmt.Sprintf("page run flag 1<<%d at %#x: %s", bit, Start, notKnown),
			func(p *parts) { p.runs[0].Flags = u(2 | 4 | 1<<bit) })
	}
	add("an eager run behind", "", func(p *parts) { p.runs = append(p.runs, run(End, 1, 4)) })
	add("an old eager run behind", "", func(p *parts) {
		r := run(End, 0, 0)
		r.NrPages, r.Flags, r.CompatNrPages = nil, nil, u(1)
		p.runs = append(p.runs, r)
	})
}

func addRest(add adder) {
	for v := range uint32(5) {
		refused := ""
		if v != 2 {
			refused = fmt.Sprintf("images of version %d: %s", v, notKnown)
		}
		add(fmt.Sprintf("inventory version %d", v), refused, func(p *parts) { p.inventory.ImgVersion = u(v) })
	}
	add("inventory of all fields", "", func(p *parts) {
		p.inventory = &inventory.InventoryEntry{ImgVersion: u(2), FdinfoPerId: proto.Bool(true),
			NsPerId: proto.Bool(true), RootCgSet: u(1),
			Lsmtype: inventory.Lsmtype_APPARMOR.Enum(), DumpUptime: proto.Uint64(1), PreDumpMode: u(9),
			TcpClose: proto.Bool(true), NetworkLockMethod: u(9),
			PluginsEntry: &inventory.PluginsEntry{Plugins: []string{"a_plugin"}}, DumpCriuRunId: proto.String("run"),
			AllowUprobes: proto.Bool(true)}
	})
	add("inventory of an unknown LSM", "", func(p *parts) { p.inventory.Lsmtype = inventory.Lsmtype(99).Enum() })
	for kind := range fdinfo.FdTypes_name {
		add(fmt.Sprintf("file of kind %d", kind), "", func(p *parts) { p.files[0].Type = fdinfo.FdTypes(kind).Enum() })
	}
	for _, kind := range []int32{21, 99, 1 << 30} {
		add(fmt.Sprintf("file of unknown kind %d", kind), "",
			func(p *parts) { p.files[0].Type = fdinfo.FdTypes(kind).Enum() })
	}
	for state := range uint32(9) {
		add(fmt.Sprintf("task state %d", state), "", func(p *parts) { p.core.Tc.TaskState = u(state) })
	}
	add("task of an unknown architecture", "", func(p *parts) { *p.core.Mtype = 99 })
	add("a field more in every message", "", func(p *parts) { p.field = true })
}
