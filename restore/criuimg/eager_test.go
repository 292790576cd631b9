package criuimg

import (
	"reflect"
	"testing"
	"testing/fstest"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/fown"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/regfile"
	"google.golang.org/protobuf/proto"
)

func TestEager(t *testing.T) {
	fsys := fstest.MapFS{
		"pagemap-7.img": pagemapImage(t, 3,
			// 6 pages between: two pieces
			pe(16, 2, pePresent), pe(18, 6, pePresent|peLazy), pe(24, 2, peParent), pe(30, 1, pePresent),
			pe(64, 2, pePresent|peLazy), pe(70, 3, pePresent)), // 2 pages between: one piece
		"pagemap-8.img":       pagemapImage(t, 4, pe(1, 4, pePresent|peLazy)),
		"pagemap-shmem-9.img": pagemapImage(t, 5, pe(0, 4, pePresent)),
	}
	got, err := Eager(fsys, 4*PageSize)
	want := []Piece{{"pages-3.img", 0, 2 * PageSize}, {"pages-3.img", 8 * PageSize, 6 * PageSize}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	fsys["pagemap-8.img"].Data = fsys["pagemap-8.img"].Data[:9]
	if _, err := Eager(fsys, 0); err == nil {
		t.Error("a damaged page map is read")
	}
}

func regular(id uint32, name string) *fdinfo.FileEntry {
	return &fdinfo.FileEntry{Type: fdinfo.FdTypes_REG.Enum(), Id: &id, Reg: &regfile.RegFileEntry{
		Id: &id, Flags: proto.Uint32(0), Pos: proto.Uint64(0), Name: &name, Fown: &fown.FownEntry{
			Uid: proto.Uint32(0), Euid: proto.Uint32(0), Signum: proto.Uint32(0), PidType: proto.Uint32(0),
			Pid: proto.Uint32(0)}}}
}

func TestCUDA(t *testing.T) {
	for _, tc := range []struct {
		name    string
		used    bool
		version string
	}{
		{"/usr/local/nvidia/lib64/libcuda.so.580.159.04", true, "580.159.04"}, {"/tmp/sim/libcuda.so.1", true, ""},
		{"/usr/lib/libcudart.so.13", false, ""},
		{"/srv/libcuda.so/data", false, ""},
	} {
		used, version, err := CUDA(fstest.MapFS{"files.img": image(t, magicFiles, regular(1, "/dev/null"),
			regular(2, tc.name), regular(3, "/etc/hosts"))})
		if err != nil || used != tc.used || version != tc.version {
			t.Errorf("%s: %v, %q, %v", tc.name, used, version, err)
		}
	}
	if used, _, err := CUDA(fstest.MapFS{}); err != nil || used {
		t.Errorf("without files.img: %v, %v", used, err)
	}
	if _, _, err := CUDA(fstest.MapFS{"files.img": image(t, magicMM)}); err == nil {
		t.Error("another image is read")
	}
}
