package inspect

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

// hostileDir tells a child of the tests where the images are that it is to read.
const hostileDir = "INSPECT_TEST_HOSTILE"

// entry frames n bytes of repetitions of what is small on disk and large in memory, behind head, as one entry.
func entry(n int, head, repeated []byte) []byte {
	body := append(bytes.Clone(head), bytes.Repeat(repeated, (n-len(head))/len(repeated))...)
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
}

func field(num protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), b)
}

func number(num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
}

// hostile gives images of about n bytes that take a hundred times as much once they are decoded.
func hostile(t testing.TB, n int) map[string][]byte {
	sound := number(1, 0)
	for i := protowire.Number(2); i <= 12; i++ {
		sound = append(sound, number(i, 0)...) // required
	}
	var vmas []byte
	for at := uint64(4096); len(vmas) < n-64; at += 8192 {
		v := append(number(1, at), number(2, at+4096)...)
		vmas = append(vmas, field(14, append(append(v, number(6, 0)...), number(7, 1)...))...)
	}
	thread := number(5, 1)
	pstree := append(append(number(1, 10), number(2, 0)...), append(number(3, 10), number(4, 10)...)...)
	head := func(magic uint32, b []byte) []byte { return append(image(t, magic), b...) }
	small := bytes.Repeat(entry(6, nil, append(number(1, 2), append(number(2, 5), field(3, nil)...)...)), n/10)
	return map[string][]byte{
		"empty-vmas/mm-10.img":      head(magicMM, entry(n, nil, field(14, nil))),
		"sound-and-empty/mm-10.img": head(magicMM, entry(n, sound, field(14, nil))),
		"small-vmas/mm-10.img":      head(magicMM, entry(n, sound, vmas)),
		"aios/mm-10.img":            head(magicMM, entry(n, sound, field(16, nil))),
		"auxv/mm-10.img":            head(magicMM, entry(n, sound, number(13, 1))),
		"threads/pstree.img":        head(magicPstree, entry(n, pstree, thread)),
		"packed-threads/pstree.img": head(
			magicPstree,
			entry(
				n,
				append(pstree, protowire.AppendTag(nil, 5, protowire.BytesType)...),
				append(
					protowire.AppendVarint(nil, uint64(n-len(pstree)-64)),
					bytes.Repeat([]byte{1}, n-len(pstree)-64)...),
			),
		),
		"empty-processes/pstree.img": head(magicPstree, bytes.Repeat([]byte{0, 0, 0, 0}, n/4)),
		"nested-core/core-10.img":    head(magicCore, entry(n, nil, field(3, field(4, nil)))),
		"unknown-core/core-10.img":   head(magicCore, entry(n, nil, number(999, 1))),
		"plugins/inventory.img":      head(magicInventory, entry(n, number(1, 2), field(12, field(1, nil)))),
		"files/files.img":            head(magicFiles, small),
		"one-file/files.img": head(
			magicFiles,
			entry(n, append(number(1, 2), number(2, 5)...), field(18, field(4, nil))),
		),
		"pagemap/pagemap-11.img": head(
			magicPagemap,
			append(
				entry(2, nil, number(1, 1)),
				bytes.Repeat(entry(4, nil, append(number(1, 0), number(2, 0)...)), n/8)...),
		),
	}
}

// TestHostileImages: whatever an image holds, what looks at it takes memory in proportion to its length. Each is
// looked at in a process of its own, whose peak is taken.
func TestHostileImages(t *testing.T) {
	if dir := os.Getenv(hostileDir); dir != "" {
		readHostile(t, dir)
		return
	}
	images := hostile(t, 8<<20)
	large := hostile(t, maxEntry-1<<10)
	for _, name := range []string{"empty-vmas/mm-10.img", "small-vmas/mm-10.img"} {
		images["large-"+name] = large[name]
	}
	children := budget.NewChildren(t)
	for name, b := range images {
		t.Run(filepath.Dir(name), func(t *testing.T) {
			dir := t.TempDir()
			for sound, f := range family(t, ".") {
				if err := os.WriteFile(filepath.Join(dir, sound), f.Data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), b, 0o600); err != nil {
				t.Fatal(err)
			}
			children.Run(t, hostileDir+"="+dir, len(b), 32<<20)
		})
	}
}

// readHostile looks at the images in dir in every way there is.
func readHostile(t *testing.T, dir string) {
	fsys := os.DirFS(dir)
	begin := time.Now()
	r, err := Read(fsys, ".")
	took := time.Since(begin)
	if err == nil {
		_, err = XState(fsys, r)
	}
	debug.FreeOSMemory() // the garbage of one parser does not count for the next
	_, err2 := criuimg.Load(fsys)
	debug.FreeOSMemory()
	_, err3 := criuimg.Eager(fsys, 0)
	debug.FreeOSMemory()
	_, _, err4 := criuimg.CUDA(fsys)
	budget.Tell(
		t,
		begin,
		fmt.Sprintf(
			"%v of it to report: %.60v; %.60v; %.60v; %.60v", took.Round(time.Millisecond), err, err2, err3, err4,
		),
	)
}

// TestHostileVMAsAreCounted: what is large and sound is shown.
func TestHostileVMAsAreCounted(t *testing.T) {
	fsys := family(t, ".")
	fsys["mm-10.img"].Data = hostile(t, 1<<20)["small-vmas/mm-10.img"]
	r, err := Read(fsys, ".")
	if err != nil {
		t.Fatal(err)
	}
	if m := r.Processes[0].Memory; m.VMAs < 50000 || m.Mapped != uint64(m.VMAs)*4096 {
		t.Errorf("memory %+v", m)
	}
}
