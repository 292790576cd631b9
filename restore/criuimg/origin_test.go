package criuimg

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/creds"
	core "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
	"google.golang.org/protobuf/proto"
)

// originImages are those of a task whose arguments lie at the end of page 0x20, of three pages that are stored from
// 0x1f on.
func originImages(t testing.TB, args string) fstest.MapFS {
	z := proto.Uint64(0)
	start := uint64(0x21*PageSize - 8)
	stored := make([]byte, 3*PageSize)
	copy(stored[2*PageSize-8:], args)
	return fstest.MapFS{
		"pstree.img": image(t, magicPstree, task(7, 1), task(8, 7)),
		"core-7.img": image(t, magicCore, &core.CoreEntry{
			Mtype: core.CoreEntry_X86_64.Enum(),
			Tc: &core.TaskCoreEntry{TaskState: proto.Uint32(1), ExitCode: proto.Uint32(0),
				Personality: proto.Uint32(0), Flags: proto.Uint32(0), BlkSigset: z, Comm: proto.String("python3")},
			ThreadCore: &core.ThreadCoreEntry{FutexRla: z, FutexRlaLen: proto.Uint32(0),
				Creds: &creds.CredsEntry{Uid: proto.Uint32(33), Gid: proto.Uint32(0), Euid: proto.Uint32(0),
					Egid: proto.Uint32(0), Suid: proto.Uint32(0), Sgid: proto.Uint32(0), Fsuid: proto.Uint32(0),
					Fsgid: proto.Uint32(0), Secbits: proto.Uint32(0)}},
		}),
		"mm-7.img": image(t, magicMM, &mm.MmEntry{MmStartCode: z, MmEndCode: z, MmStartData: z, MmEndData: z,
			MmStartStack: z, MmStartBrk: z, MmBrk: z,
			MmArgStart: &start, MmArgEnd: proto.Uint64(start + uint64(len(args))), MmEnvStart: z, MmEnvEnd: z,
			ExeFileId: proto.Uint32(1)}),
		"pagemap-7.img": pagemapImage(t, 3, pe(0x1f, 3, pePresent|peLazy)),
		"pages-3.img":   &fstest.MapFile{Data: stored},
		"utsns-11.img": image(t, magicUTSNS,
			&utsns.UtsnsEntry{Nodename: proto.String("web-1"), Domainname: proto.String("")}),
	}
}

func TestFindOrigin(t *testing.T) {
	long := strings.Repeat("x", 3000)
	for name, c := range map[string]struct {
		args   string
		change func(fstest.MapFS)
		want   Origin
	}{
		"arguments": {args: "python3\x00serve.py\x00", want: Origin{"python3 serve.py", 33, "web-1"}},
		"a title": {args: "nginx: worker\x1b[1m\x00\x00\x00",
			want: Origin{"nginx: worker [1m", 33, "web-1"}},
		"long":      {args: long, want: Origin{long[:maxCommand], 33, "web-1"}},
		"not utf-8": {args: "a\xffb", want: Origin{"a\ufffdb", 33, "web-1"}},
		"no memory": {args: "x", change: func(m fstest.MapFS) { delete(m, "pages-3.img") },
			want: Origin{"python3", 33, "web-1"}},
		"memory in a parent": {args: "x",
			change: func(m fstest.MapFS) { m["pagemap-7.img"] = pagemapImage(t, 3, pe(0x1f, 3, peParent)) },
			want:   Origin{"python3", 33, "web-1"}},
		"no namespace of host": {args: "x", change: func(m fstest.MapFS) { delete(m, "utsns-11.img") },
			want: Origin{"x", 33, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			m := originImages(t, c.args)
			if c.change != nil {
				c.change(m)
			}
			got, err := FindOrigin(m)
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	m := originImages(t, "x")
	m["core-7.img"] = &fstest.MapFile{Data: make([]byte, maxSmall+1)}
	if _, err := FindOrigin(m); err == nil {
		t.Error("a core image of a megabyte was decoded")
	}
}

func FuzzArgumentRange(f *testing.F) {
	image := originImages(f, "sleep\x001000\x00")["mm-7.img"].Data
	f.Add(image)
	f.Add(append(image[:len(image)-1:len(image)-1], 0x80)) // its last field has no end
	f.Fuzz(func(t *testing.T, b []byte) {
		start, end, err := argumentRange(fstest.MapFS{"mm-7.img": &fstest.MapFile{Data: b}}, 7)
		if err != nil && (start != 0 || end != 0) {
			t.Errorf("%#x-%#x with %v", start, end, err)
		}
	})
}
