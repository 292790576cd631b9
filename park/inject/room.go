package inject

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// Sizes of ELF's 64-bit structures, see elf(5).
const (
	headerSize  = 64
	programSize = 56
	maxPrograms = 64
	pageSize    = 4096
)

// room finds addresses, the best first, where size bytes fit behind the end of a segment of code and before that of
// its mapping. read reads the process's memory.
func room(all []Mapping, size uint64, read func(addr uint64, into []byte) error) []uint64 {
	var found []uint64
	for _, m := range all {
		if m.Perms != "r-xp" || m.Path == "" || m.Path[0] == '[' && m.Path != "[vdso]" {
			continue
		}
		head, ok := header(all, m)
		if !ok {
			continue
		}
		end, ok := codeEnd(head, m, read)
		if at := (m.End - size) &^ 15; ok && at >= end && at < m.End {
			found = append(found, at)
		}
	}
	return found
}

// header gives the address of the ELF header that a mapping belongs to.
func header(all []Mapping, of Mapping) (uint64, bool) {
	if of.Path == "[vdso]" || of.Offset == 0 {
		return of.Start, true
	}
	at, ok := uint64(0), false
	for _, m := range all {
		if m.Path == of.Path && m.Offset == 0 && m.Start < of.Start {
			at, ok = m.Start, true // the nearest below: a file may be loaded twice
		}
	}
	return at, ok
}

// codeEnd gives the address behind the segment of code that a mapping holds the end of.
func codeEnd(head uint64, m Mapping, read func(uint64, []byte) error) (uint64, bool) {
	var h elf.Header64
	buf := make([]byte, headerSize)
	if read(head, buf) != nil || binary.Read(bytes.NewReader(buf), binary.LittleEndian, &h) != nil ||
		!bytes.HasPrefix(buf, []byte(elf.ELFMAG)) ||
		h.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64) || h.Phentsize != programSize || h.Phnum > maxPrograms ||
		h.Phoff > pageSize {
		return 0, false
	}
	buf = make([]byte, int(h.Phnum)*programSize)
	if read(head+h.Phoff, buf) != nil {
		return 0, false
	}
	programs := make([]elf.Prog64, h.Phnum)
	if binary.Read(bytes.NewReader(buf), binary.LittleEndian, &programs) != nil {
		return 0, false
	}
	for _, p := range programs {
		end := p.Off + p.Filesz
		if elf.ProgType(p.Type) != elf.PT_LOAD || elf.ProgFlag(p.Flags)&elf.PF_X == 0 || p.Filesz != p.Memsz ||
			end < p.Off {
			continue
		}
		// The mapping's last page is the segment's last page.
		if last := m.Offset + m.End - m.Start; end > m.Offset && end <= last && last-end < pageSize {
			return m.Start + end - m.Offset, true
		}
	}
	return 0, false
}
