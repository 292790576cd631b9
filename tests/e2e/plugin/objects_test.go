package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/kfd/abi"
	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
)

// object has processes share an object of the render node.
const object = "--render-bo=196608"

// Buffer objects of render nodes, and dma-bufs, come back under their handles, at their
// addresses and shared by the processes that shared them. The application checks that: who
// writes is seen by the others.
func TestObjectsOfRenderNodes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		procs int
		args  []string
		env   []string
	}{
		{"made on a render node", 1, nil, nil},
		{"made on a render node, exported and imported", 2, nil, nil},
		{"with dma-bufs that are open", 2, []string{"--keep-dmabuf"}, nil},
		{"made by the KFD, imported by three", 4, []string{"--render-kfd", "--keep-dmabuf"}, nil},
		{"in images of CRIU's later form", 2, []string{"--render-kfd"}, []string{"GPUCR_SCHEMA=later"}},
		{"held by a dma-buf alone", 1, []string{"--dmabuf-alone"}, nil},
		{"held by dma-bufs of two processes alone", 2, []string{"--dmabuf-alone"}, nil},
		{"beside VRAM on demand", 2, []string{"--render-kfd", "--keep-dmabuf", "--big-bo", "33554432"},
			[]string{"GPUCR_VRAM=lazy"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
			b.env = tc.env
			args := append([]string{"--interval", "1", "--bos", "8", "--max-bo", "65536", object}, tc.args...)
			app := b.StartApp(tc.procs, args...)
			for i := range 2 {
				if b.images = filepath.Join(b.Dir, fmt.Sprintf("images-%d", i)); os.Mkdir(b.images, 0o755) != nil {
					t.Fatal("no folder for images")
				}
				b.dump(app)
				b.noHelpers()
				b.WaitVRAMFree()
				b.restore()
				app.WaitRounds(2)
				b.noHelpers()
			}
			b.noGPUErrors()
			app.Kill()
		})
	}
}

// The same through a store: the daemon fills what a render node holds.
func TestObjectsInStore(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	store := filepath.Join(b.Dir, "store")
	b.gpucr("init", store)
	b.daemonsEnd(store)
	app := b.StartApp(2, "--interval", "1", "--bos", "8", "--max-bo", "65536", "--keep-dmabuf", object)
	for _, args := range [][]string{{"dump", "--criu", b.CRIU, "-t", strconv.Itoa(app.PID), store, "gpu"},
		{"restore", "--criu", b.CRIU, "--vram=lazy", "--wait", store, "gpu"}} {
		cmd := b.Command("env", append([]string{"LD_PRELOAD=" + b.Shim, b.program}, args...)...)
		if err := b.start(cmd).wait(); err != nil {
			t.Fatal(err)
		}
		if args[0] == "dump" {
			app.WaitGone()
		}
	}
	app.WaitRounds(1)
	b.noGPUErrors()
	app.Kill()
	app.WaitGone()
	b.noHelpers()
}

// A dma-buf of the KFD's alone, without a render node that has objects. Of two processes the descriptor is lower than
// that of /dev/kfd, and so the file is restored before it.
func TestDmabufOfTheKFD(t *testing.T) {
	for _, procs := range []int{1, 2} {
		b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
		app := b.StartApp(procs, "--interval", "1", "--bos", "8", "--max-bo", "65536", "--keep-dmabuf")
		b.dump(app)
		b.restore()
		app.WaitRounds(1)
		b.noGPUErrors()
		app.Kill()
	}
}

// What cannot be restored is not dropped: the dump is refused, with its name, and the
// application runs on.
func TestObjectsThatAreRefused(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	for _, tc := range []struct {
		arg     string
		errno   syscall.Errno // of this request
		request abi.Request
		want    []string
	}{
		{"--render-userptr", 0, 0, []string{"renderD128: buffer object of handle 2, 4.0 KiB, cannot be restored: the " +
			"driver does not export it; it may be memory of the process itself"}},
		{"--keep-dmabuf", syscall.EAGAIN, abi.DRMIocPrimeHandleToFD, []string{
			"renderD128: buffer object of handle 1: the driver puts its export off for ever",
			"resource temporarily unavailable"}},
		{"--keep-dmabuf", syscall.EINVAL, abi.AMDGPUIocGEMListHandles, []string{
			"render node renderD128: it has 1 buffer objects that are not the KFD's, the first handle 1 of 196 KiB",
			"Linux 6.18 does"}},
	} {
		app := b.StartApp(1, "--interval", "1", "--bos", "8", "--max-bo", "65536", "--render-bo=196608", tc.arg)
		if tc.errno != 0 {
			if err := b.Sim.Inject(kfdsim.Fault{Kind: kfdsim.FaultIoctl, Request: tc.request.String(),
				Errno: tc.errno}); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.criu("dump", "-t", strconv.Itoa(app.PID)); err == nil {
			t.Fatalf("%s: it was dumped", tc.arg)
		}
		b.Sim.ClearFaults()
		for _, want := range tc.want {
			if log := b.criuLog("dump"); !strings.Contains(log, want) {
				t.Errorf("%s: criu does not say %q:\n%s", tc.arg, want, log)
			}
		}
		b.noHelpers()
		app.WaitRounds(1)
		app.Kill()
		app.WaitGone()
	}
}

// CRIU's own plugin after 4.2 tells of a dma-buf by a number alone, which may be another object's on another open of
// the render node. Nobody gets that other one: the restore ends, with the name of the image.
func TestDmabufThatCannotBeTold(t *testing.T) {
	b := newBench(t, kfdsim.Options{GPUs: []kfdsim.GPU{{}}})
	b.env = []string{"GPUCR_SCHEMA=later"}
	app := b.StartApp(2, "--interval", "1", "--bos", "8", "--max-bo", "65536", "--keep-dmabuf")
	b.dump(app)
	b.WaitVRAMFree()
	names := b.asTheirs()
	if len(names) == 0 {
		t.Fatal("no dma-buf was dumped")
	}
	err := b.criu("restore", "-d")
	if err == nil {
		t.Fatal("the application is restored, with an object that may be another")
	}
	log := b.criuLog("restore")
	if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(log, "Error: "+name) }) ||
		!strings.Contains(log, "which is meant cannot be told (hint: dump with gpucr-fs's plugin)") {
		t.Errorf("criu does not say why:\n%s", log)
	}
	app.WaitGone()
	b.noHelpers()
}

// asTheirs makes the images what CRIU's plugin would have written: without our fields, and with a number for each
// dma-buf that was free on the open where the plugin tried it. It returns the names of those.
func (b *bench) asTheirs() (dmabufs []string) {
	b.T.Helper()
	set := b.set()
	write := func(name string, data []byte, err error) {
		b.T.Helper()
		if err == nil {
			err = os.WriteFile(filepath.Join(b.images, name), data, 0o644)
		}
		if err != nil {
			b.T.Fatal(err)
		}
	}
	for _, p := range set.Processes {
		for _, bo := range p.Message.Bos {
			bo.Object = nil
		}
		data, err := image.EncodeProcess(p.Message, image.SchemaLater)
		write(p.Name, data, err)
	}
	for _, n := range set.RenderNodes {
		for _, bo := range n.Message.Bos {
			bo.Object = nil
		}
		data, err := image.EncodeRenderNode(n.Message, image.SchemaLater)
		write(n.Name, data, err)
	}
	for _, d := range set.Dmabufs {
		data, err := image.EncodeDmabuf(&imagepb.Dmabuf{GemHandle: proto.Uint32(1)})
		write(d.Name, data, err)
		dmabufs = append(dmabufs, d.Name)
	}
	return dmabufs
}
