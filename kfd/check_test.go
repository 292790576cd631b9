package kfd

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/kfd/topology"
)

// checkpoint reads the checkpoint that package image tests with: one process
// on a CPU and two GPUs of 64 GiB, 0xa000 and 0xb111, which form a hive.
func checkpoint(t *testing.T) *image.Set {
	t.Helper()
	s, err := image.Read(os.DirFS("image/testdata/later"))
	if err != nil {
		t.Fatal(err)
	}
	// Both GPUs become of one model: every property differs there.
	devices := s.Processes[0].Message.Devices
	second := proto.Clone(devices[1]).(*imagepb.Device)
	second.NodeId, second.GpuId, second.DrmRenderMinor = devices[2].NodeId, devices[2].GpuId, devices[2].DrmRenderMinor
	second.Links = devices[2].Links
	devices[2] = second
	return s
}

// host is the machine of a checkpoint with other GPU ids, changed a little.
func host(set *image.Set, change func(*topology.System)) Host {
	sys := Topology(set.Processes[0].Message)
	for i, n := range sys.GPUs() {
		n.GPUID = uint32(i + 1)
	}
	if change != nil {
		change(sys)
	}
	return Host{Topology: sys, Driver: &DriverVersion{1, 14}}
}

func TestCheck(t *testing.T) {
	set := checkpoint(t)
	without := func(sys *topology.System) { sys.Nodes = sys.Nodes[:2] }
	prop := func(p topology.Property, v uint64) func(*topology.System) {
		return func(sys *topology.System) {
			for _, n := range sys.GPUs() {
				n.Props[p] = v
			}
		}
	}
	mapped := []string{
		"process 4242: its GPUs map onto this host's",
		"  GPU 0xa000 -> 0x1 (renderD128), 20 GiB of VRAM, 0 B of GTT",
		"  GPU 0xb111 -> 0x2 (renderD129), 12 KiB of VRAM, 8.0 KiB of GTT",
		"  CPU 0 -> 0",
	}
	for _, c := range []struct {
		name   string
		host   Host
		waived topology.Waived
		ok     bool
		lines  []string
	}{
		{"matching host", host(set, nil), 0, true, mapped},
		{"no driver to ask", Host{Topology: host(set, nil).Topology}, 0, true, mapped},
		{"too little VRAM", host(set, prop(topology.VRAMSize, 16<<30)), 0, false, []string{
			"process 4242: its GPUs do not map onto this host's",
			"  GPU 0xa000 onto 0x1: vram_size is 64 GiB (68719476736 bytes) in the checkpoint and 16 GiB " +
				"(17179869184 bytes) here, must be at least that (KFD_VRAM_SIZE_CHECK=0 waives this)",
			"  GPU 0xb111 onto 0x2: vram_size is 64 GiB (68719476736 bytes) in the checkpoint and 16 GiB " +
				"(17179869184 bytes) here, must be at least that (KFD_VRAM_SIZE_CHECK=0 waives this)",
			"  hint: the checkpoint maps onto this host with KFD_VRAM_SIZE_CHECK=0"}},
		{"too little VRAM, waived, and yet too little", host(set, prop(topology.VRAMSize, 16<<30)),
			topology.Waive(topology.VRAM), false,
			append([]string{"GPU 0x1 has 16 GiB of VRAM, the checkpoint's buffer objects need 20 GiB of it",
				"not checked: KFD_VRAM_SIZE_CHECK"}, mapped...)},
		{"less VRAM, waived, and enough", host(set, prop(topology.VRAMSize, 32<<30)), topology.Waive(topology.VRAM),
			true,
			append([]string{"not checked: KFD_VRAM_SIZE_CHECK"}, mapped...)},
		{"older firmware", host(set, func(sys *topology.System) { sys.GPU(2).Props[topology.FWVersion] = 460 }), 0,
			false, []string{
				"process 4242: its GPUs do not map onto this host's",
				"  GPU 0xb111 onto 0x2: fw_version is 1027 in the checkpoint and 460 here, must be at least that " +
					"(KFD_FW_VER_CHECK=0 waives this)",
				"  hint: the checkpoint maps onto this host with KFD_FW_VER_CHECK=0"}},
		{"fewer GPUs", host(set, without), 0, false, []string{
			"process 4242: its GPUs do not map onto this host's",
			"  the checkpoint was made with 2 GPUs visible, this host shows 1 GPU: the numbers must be equal"}},
		{"no KFD", Host{}, 0, false, []string{
			"the checkpoint has GPU state and this host has no KFD (hint: is the amdgpu driver loaded?)"}},
		{"old driver", Host{Topology: host(set, nil).Topology, Driver: &DriverVersion{1, 6}}, 0, false, append([]string{
			"KFD interface version is 1.6, 1.8 or a later 1.x is needed " +
				"(hint: update the kernel or the amdgpu driver)"}, mapped...)},
	} {
		r := Check(set, c.host, topology.Settings{Waived: c.waived})
		if r.OK != c.ok {
			t.Errorf("%s: ok %v, want %v", c.name, r.OK, c.ok)
		}
		if got := r.Lines(); !slices.Equal(got, c.lines) {
			t.Errorf("%s: told\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.lines, "\n"))
		}
	}

	b, err := json.Marshal(Check(set, host(set, nil), topology.Settings{Waived: topology.Waive(topology.GWS)}))
	if want := `{"ok":true,"driver":{"major":1,"minor":14},"waived":["KFD_NUM_GWS_CHECK"],"processes":[` +
		`{"image":"amdgpu-kfd-7.img","pid":4242,"ok":true,` +
		`"gpus":[{"checkpoint":40960,"host":1,"render_minor":128,"vram_bytes":21475885056,"gtt_bytes":0},` +
		`{"checkpoint":45329,"host":2,"render_minor":129,"vram_bytes":12288,"gtt_bytes":8192}],` +
		`"cpus":[{"checkpoint":0,"host":0}]}],` +
		`"memory":[{"gpu_id":1,"need_bytes":21475885056,"have_bytes":68719476736},` +
		`{"gpu_id":2,"need_bytes":12288,"have_bytes":68719476736}],` +
		`"host_bytes":8192}`; err != nil || string(b) != want {
		t.Errorf("JSON\n%s, %v, want\n%s", b, err, want)
	}
}

func TestCheckWithoutGPUState(t *testing.T) {
	r := Check(&image.Set{}, Host{}, topology.Settings{})
	if !r.OK || !slices.Equal(r.Lines(), []string{"no GPU state"}) {
		t.Errorf("%+v", r)
	}
}

func TestCheckProcessesShareGPUs(t *testing.T) {
	set := checkpoint(t)
	for range 3 {
		set.Processes = append(set.Processes, set.Processes[0])
	}
	r := Check(set, host(set, nil), topology.Settings{})
	if want := "GPU 0x1 has 64 GiB of VRAM, the checkpoint's buffer objects need 80 GiB of it"; r.OK ||
		!slices.Equal(r.Problems, []string{want}) {
		t.Errorf("four processes of 20 GiB: %q, want %q", r.Problems, want)
	}
	set = checkpoint(t)
	*set.RenderNodes[0].Message.GpuId = 5
	r = Check(set, host(set, nil), topology.Settings{})
	if want := "amdgpu-renderD-8.img is of GPU 0x5, which no process of the checkpoint lists"; r.OK ||
		!slices.Equal(r.Problems, []string{want}) {
		t.Errorf("a stray render node: %q, want %q", r.Problems, want)
	}
}

// TestTopologyFromImage sets one field of a device after the other.
func TestTopologyFromImage(t *testing.T) {
	base := checkpoint(t).Processes[0].Message
	before := Topology(base).Nodes[1]
	seen := map[topology.Property]bool{}
	fields := base.Devices[1].ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if fd.IsList() || fd.Name() == "node_id" || fd.Name() == "gpu_id" || fd.Name() == "gds_size_in_kb" {
			continue // no properties; the plugin never fills in the last
		}
		p := proto.Clone(base).(*imagepb.Process)
		m := p.Devices[1].ProtoReflect()
		switch v := m.Get(fd).Interface().(type) {
		case uint32:
			m.Set(fd, protoreflect.ValueOf(v+1))
		case uint64:
			m.Set(fd, protoreflect.ValueOf(v+1))
		}
		after := Topology(p).Nodes[1]
		changed := 0
		for prop := range topology.NumProperties {
			if after.Props[prop] != before.Props[prop] {
				changed++
				seen[prop] = prop.String() == string(fd.Name())
			}
		}
		if changed != 1 {
			t.Errorf("%s changes %d properties", fd.Name(), changed)
		}
	}
	for prop := range topology.NumProperties {
		if !seen[prop] {
			t.Errorf("%v does not come from the field of its name", prop)
		}
	}
	if want := (topology.Link{Type: topology.XGMI, To: 2}); before.ID != 1 || before.GPUID != 0xa000 ||
		!slices.Contains(before.Links, want) {
		t.Errorf("GPU %+v", before)
	}
}

func TestReadDriverVersion(t *testing.T) {
	if _, err := ReadDriverVersion(t.TempDir() + "/kfd"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing device: %v", err)
	}
	if _, err := ReadDriverVersion("/dev/null"); !errors.Is(err, unix.ENOTTY) ||
		!strings.Contains(err.Error(), "/dev/null: AMDKFD_IOC_GET_VERSION") {
		t.Errorf("another device: %v", err)
	}
}
