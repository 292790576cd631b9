package criuimg

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"sort"
	"strings"

	core "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
)

// Magics of images that only Origin reads, from CRIU's magic.h.
const (
	magicCore  = 0x55053847
	magicUTSNS = 0x54473203
)

// maxCommand bounds the command line that Origin gives, in bytes.
const maxCommand = 512

// Origin is where the first process of a checkpoint comes from.
type Origin struct {
	// Command is its command line, arguments separated by spaces, cut after 512 bytes; the name of its first thread
	// where the memory with the arguments is not in these images.
	Command string
	// UID is its real user.
	UID uint32
	// Host is the name of the host as the process sees it; "" where CRIU did not dump the UTS namespace.
	Host string
}

// FindOrigin reads the few images that say so. If a process has written over its arguments, as for ps, Command is what
// it wrote.
func FindOrigin(fsys fs.FS) (Origin, error) {
	tasks, err := loadTree(fsys)
	if err != nil {
		return Origin{}, err
	}
	pid := tasks[0].PID
	r, err := openSmall(fsys, fmt.Sprintf("core-%d.img", pid), magicCore)
	if err != nil {
		return Origin{}, fmt.Errorf("open core of task %d: %w", pid, err)
	}
	defer r.close()
	var c core.CoreEntry
	if err := r.one(&c); err != nil {
		return Origin{}, err
	}
	o := Origin{Command: c.GetTc().GetComm(), UID: c.GetThreadCore().GetCreds().GetUid()}
	if line, err := arguments(fsys, pid); err == nil && line != "" {
		o.Command = line
	}
	if names, err := fs.Glob(fsys, "utsns-*.img"); err == nil && len(names) > 0 {
		o.Host, err = nodeName(fsys, names[0])
		if err != nil {
			return o, err
		}
	}
	return o, nil
}

// maxSmall bounds images of which there is a page as a rule, decoded whole.
const maxSmall = 1 << 20

// openSmall is openImage for them.
func openSmall(fsys fs.FS, name string, magic uint32) (*reader, error) {
	st, err := fs.Stat(fsys, name)
	if err == nil && st.Size() > maxSmall {
		err = corrupt(name, "%d bytes, more than %d", st.Size(), maxSmall)
	}
	if err != nil {
		return nil, err
	}
	return openImage(fsys, name, magic)
}

func nodeName(fsys fs.FS, name string) (string, error) {
	r, err := openSmall(fsys, name, magicUTSNS)
	if err != nil {
		return "", err
	}
	defer r.close()
	var u utsns.UtsnsEntry
	if err := r.one(&u); err != nil {
		return "", err
	}
	return u.GetNodename(), nil
}

// arguments gives the command line of a task from its memory: mm-PID tells where it lies, the page map where that is
// stored.
func arguments(fsys fs.FS, pid int) (string, error) {
	start, end, err := argumentRange(fsys, pid)
	if err != nil || start >= end {
		return "", err
	}
	end = min(end, start+maxCommand)
	m, err := loadPagemap(fsys, ".", pid, maxRuns)
	if err != nil {
		return "", err
	}
	i := sort.Search(len(m.runs), func(i int) bool { return m.runs[i].end > start })
	if i == len(m.runs) || m.runs[i].start > start || m.runs[i].flags&pePresent == 0 || m.runs[i].flags&peParent != 0 {
		return "", nil // a kernel thread's, or in an earlier dump
	}
	f, err := fsys.Open(m.file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	at, ok := f.(io.ReaderAt)
	if !ok {
		return "", fmt.Errorf("%s cannot be read at an offset", m.file)
	}
	b := make([]byte, min(end, m.runs[i].end)-start)
	n, err := at.ReadAt(b, m.runs[i].off+int64(start-m.runs[i].start))
	if n == 0 {
		return "", err
	}
	return plain(b[:n]), nil
}

// argumentRange gives the addresses of a task's arguments.
func argumentRange(fsys fs.FS, pid int) (start, end uint64, err error) {
	r, err := openImage(fsys, fmt.Sprintf("mm-%d.img", pid), magicMM)
	if err != nil {
		return 0, 0, err
	}
	defer r.close()
	b, err := r.bytes()
	if err != nil {
		return 0, 0, err
	}
	args, _, err := titles(r.name, b)
	return args.Start, args.End, err
}

// plain makes one printable line of arguments separated by zeros.
func plain(b []byte) string {
	b = bytes.TrimRight(b, "\x00")
	return strings.TrimSpace(strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, string(b)), "?"))
}
