package helper

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/kfd/image"
	"github.com/gpucr/gpucr-fs/kfd/image/imagepb"
)

// kfdBO and nodeBO are buffer objects as CRIU's plugin describes them: by handles alone.
func kfdBO(handle uint32, size uint64) *imagepb.BO {
	return &imagepb.BO{GpuId: proto.Uint32(7), Handle: proto.Uint32(handle), Size: proto.Uint64(size)}
}

func nodeBO(handle uint32, size uint64, imported uint32) *imagepb.RenderBO {
	return &imagepb.RenderBO{Handle: proto.Uint32(handle), Size: proto.Uint64(size), IsImport: proto.Uint32(imported)}
}

// theirs are images of CRIU's plugin: BOs of one process's KFD, those of open render nodes, and a dma-buf.
func theirs(dmabuf uint32, bos []*imagepb.BO, nodes ...[]*imagepb.RenderBO) *image.Set {
	set := &image.Set{Dmabufs: []image.Dmabuf{{Name: "amdgpu-dmabuf_9.img",
		Message: &imagepb.Dmabuf{GemHandle: proto.Uint32(dmabuf)}, Layout: &image.Layout{}}}}
	if bos != nil {
		set.Processes = []image.Process{{Name: "amdgpu-kfd-7.img", Message: &imagepb.Process{Bos: bos},
			Layout: &image.Layout{BOs: make([]image.BO, len(bos))}}}
	}
	for _, list := range nodes {
		set.RenderNodes = append(set.RenderNodes, image.RenderNode{Name: "amdgpu-renderD-8.img",
			Message: &imagepb.RenderNode{GpuId: proto.Uint32(7), Bos: list},
			Layout:  &image.Layout{BOs: make([]image.BO, len(list))}})
	}
	return set
}

// CRIU's plugin notes for a dma-buf the first number that fits any object, on whatever render node. Where it may be
// another one's, the dma-buf is refused at once: no task gets another object, and none waits for one.
func TestDmabufsOfCRIUsPlugin(t *testing.T) {
	own := func(handle uint32) []*imagepb.RenderBO { return []*imagepb.RenderBO{nodeBO(handle, 4096, 0)} }
	imports := func(handle uint32) []*imagepb.RenderBO { return []*imagepb.RenderBO{nodeBO(handle, 4096, 1)} }
	for _, tc := range []struct {
		name string
		set  *image.Set
		told bool
	}{
		{"the only object of the only node", theirs(1, nil, own(1)), true},
		{"an object that each node has under that number", theirs(1, nil, own(1), imports(1)), true},
		{"the KFD's, and each node has imported it", theirs(2, []*imagepb.BO{kfdBO(2, 4096)}, imports(2)), true},
		{"a node has no such number", theirs(1, nil, own(1), nil), false},
		{"a node has another object of that number", theirs(1, nil, own(1), own(1)), false},
		{"the KFD's, and no node has it", theirs(1, []*imagepb.BO{kfdBO(1, 4096)}, nil), false},
		{"a node's, and the plugin's own open has none of it", theirs(2, []*imagepb.BO{kfdBO(1, 4096)}, own(2)), false},
		{"a node's, and the KFD has another", theirs(1, []*imagepb.BO{kfdBO(1, 4096)}, own(1)), false},
		{"a number of nothing", theirs(3, nil, own(1)), false},
		{"no node at all", theirs(1, []*imagepb.BO{kfdBO(1, 4096)}), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newObjects(tc.set).of[tc.set.Dmabufs[0].Message]
			select {
			case <-x.ready:
				if tc.told {
					t.Errorf("refused: %v", x.err)
				} else if err := x.err; err == nil || !strings.Contains(err.Error(), "which is meant cannot be told") {
					t.Errorf("refused with %v", err)
				}
			default:
				if !tc.told {
					t.Error("it is taken for an object, which may be another")
				}
			}
		})
	}
}
