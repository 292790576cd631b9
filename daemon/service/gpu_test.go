package service

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/kfd/topology"
	"github.com/gpucr/gpucr-fs/tests/gpuimages"
)

func gpuHost(t *testing.T) *topology.System {
	t.Helper()
	sys, err := gpuimages.Host(
		t.TempDir(),
		kfdsim.Options{GPUs: []kfdsim.GPU{{ID: 0x11, VRAM: 16 << 30}, {ID: 0x12, VRAM: 16 << 30}}},
	)
	if err != nil {
		t.Fatal(err)
	}
	return sys
}

const (
	vram    = abi.KFDMemVRAM
	gtt     = abi.KFDMemGTT
	userptr = abi.KFDMemUserptr
)

// A buffer object of 256 MB among others is stored once, however it lies in two checkpoints and however these came in.
func TestSameBufferObjectIsStoredOnce(t *testing.T) {
	const big = 256 << 20
	host := gpuHost(t)
	first := []gpuimages.BO{
		{Size: 12 << 10, Flags: vram, Seed: 1},
		{Size: big, Flags: vram, Seed: 99},
		{Size: 1 << 20, GPU: 1, Flags: gtt, Seed: 2},
		{Size: 8 << 10, Flags: userptr},
	}
	second := []gpuimages.BO{
		{Size: 1<<20 + 4096, Flags: vram, Seed: 3},
		{Size: 64 << 10, Flags: vram},
		{Size: 260 << 10, Flags: vram, Seed: 4},
		{Size: 4096, GPU: 1, Flags: vram, Seed: 5},
		{Size: big, GPU: 1, Flags: vram, Seed: 99},
		{Size: 12 << 10, GPU: 1, Flags: vram, Seed: 1},
	}
	s := open(t)
	a, b := gpuimages.Process(1, host, first), gpuimages.Process(2, host, second)

	// The first comes as an archive.
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeTar(w, a, first)) }()
	must[ImportResult](t)(Import.Do(t.Context(), s, ImportRequest{Name: "a"}, wire.Streams{In: r}))
	before := s.Store.Stats().BytesStored

	// The second is written into the mount, the image that tells of the buffer objects after their contents.
	d, err := s.Store.Create(t.Context(), "b", index.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	files, err := gpuimages.Files(7, b, second)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		out, err := d.Create(f.Name, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.NewOffsetWriter(out, 0)},
			f.Body, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if more := s.Store.Stats().BytesStored - before; more > 4<<20 {
		t.Errorf("the second checkpoint added %d bytes", more)
	}

	diff := must[DiffResult](t)(Diff.Do(t.Context(), s, DiffRequest{A: "a", B: "b"}, wire.Streams{}))
	same := map[string]string{}
	for _, bo := range diff.BOs {
		same[bo.Name] = strings.Join(bo.SameAs, ",")
		if bo.Size != bo.Zero+bo.Shared+bo.Unique {
			t.Errorf("%+v", bo)
		}
	}
	want := map[string]string{
		"amdgpu-kfd-7.img#0": "",
		"amdgpu-kfd-7.img#1": "",
		"amdgpu-kfd-7.img#2": "",
		"amdgpu-kfd-7.img#3": "",
		"amdgpu-kfd-7.img#4": "amdgpu-kfd-7.img#1",
		"amdgpu-kfd-7.img#5": "amdgpu-kfd-7.img#0",
	}
	if len(same) != len(want) || diff.Unique > 4<<20 {
		t.Errorf("diff: %+v", diff)
	}
	for name, is := range want {
		if same[name] != is {
			t.Errorf("%s is the same as %q, want %q", name, same[name], is)
		}
	}

	info := must[InfoResult](t)(Info.Do(t.Context(), s, InfoRequest{Ref: "a"}, wire.Streams{}))
	if g := info.GPU; g == nil || info.GPUProblem != "" || g.VRAMBytes != big+12<<10 || len(g.Processes) != 1 ||
		len(g.Processes[0].Queues) != 2 ||
		len(g.BOs) != 3 {
		t.Fatalf("info: %+v, %s", info.GPU, info.GPUProblem)
	}
	if bo := info.GPU.BOs[1]; bo.Shared != big || !slices.Equal(bo.SameAs, []string{"b"}) {
		t.Errorf("info: %+v", bo)
	}
	list := must[ListResult](t)(List.Do(t.Context(), s, ListRequest{}, wire.Streams{})).Checkpoints
	if g := list[0].GPU; g == nil || g.VRAM != big+12<<10 || g.GTT != 1<<20 || g.GPUs != 2 || g.BOs != 4 {
		t.Errorf("ls: %+v", g)
	}
	if v := must[index.VerifyResult](t)(Verify.Do(t.Context(), s, VerifyRequest{Subset: 1}, wire.Streams{})); len(
		v.Problems,
	) > 0 {
		t.Errorf("verify: %+v", v)
	}
}

// writeTar writes an archive as podman makes it: the images are in checkpoint/.
func writeTar(w io.Writer, p *imagepb.Process, bos []gpuimages.BO) error {
	files, err := gpuimages.Files(7, p, bos)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	if err := tw.WriteHeader(&tar.Header{Name: "checkpoint/", Typeflag: tar.TypeDir, Mode: 0o700}); err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Name: "checkpoint/inventory.img", Size: 9, Mode: 0o600}); err != nil {
		return err
	}
	if _, err := io.WriteString(tw, "inventory"); err != nil {
		return err
	}
	for _, f := range files {
		if err := tw.WriteHeader(
			&tar.Header{Name: path.Join("checkpoint", f.Name), Size: f.Size, Mode: 0o600}); err != nil {
			return err
		}
		if _, err := io.Copy(tw, f.Body); err != nil {
			return err
		}
	}
	return tw.Close()
}

// Images that make no sense are kept as they came, and info says what is wrong with them.
func TestGPUImagesThatMakeNoSense(t *testing.T) {
	s := open(t)
	d, err := s.Store.Create(t.Context(), "odd", index.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Create("amdgpu-kfd-1.img", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("no size, no image"), 0)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	info := must[InfoResult](t)(Info.Do(t.Context(), s, InfoRequest{Ref: "odd"}, wire.Streams{}))
	if info.GPU != nil || !strings.Contains(info.GPUProblem, "amdgpu-kfd-1.img") {
		t.Errorf("info: %+v, %q", info.GPU, info.GPUProblem)
	}
	diff := must[DiffResult](t)(Diff.Do(t.Context(), s, DiffRequest{A: "odd", B: "odd"}, wire.Streams{}))
	if !strings.Contains(diff.GPUProblem, "amdgpu-kfd-1.img") {
		t.Errorf("diff: %+v", diff)
	}
	if list := must[ListResult](t)(List.Do(t.Context(), s, ListRequest{}, wire.Streams{})).Checkpoints; len(
		list,
	) != 1 ||
		list[0].GPU != nil {
		t.Errorf("ls: %+v", list)
	}
}
