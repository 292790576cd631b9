package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/daemon/gpu"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/kfd/image"
)

// maxBOs bounds the buffer objects in a text: the largest. An application of ROCm has thousands.
const maxBOs = 64

func printGPU(w io.Writer, res service.InfoResult) {
	if res.GPUProblem != "" {
		fmt.Fprintf(w, "\ngpu\tits images cannot be read: %s\n", res.GPUProblem)
	}
	r := res.GPU
	if r == nil {
		return
	}
	fmt.Fprintf(w, "\ngpu\tamdgpu, images of schema %s\n", r.Schema)
	if r.Dmabufs > 0 {
		fmt.Fprintf(w, "dmabufs\t%d\n", r.Dmabufs)
	}
	fmt.Fprintf(w, "\nKIND\tBUFFER OBJECTS\tSIZE\n")
	for _, t := range r.Totals {
		fmt.Fprintf(w, "%s\t%d\t%s\n", t.Kind, t.Count, size(t.Bytes))
	}
	fmt.Fprintf(w, "\nGPU\tPID\tDEVICE\tRENDER NODE\tITS VRAM\tBUFFER OBJECTS\tQUEUES\n")
	for _, p := range r.Processes {
		for _, g := range p.GPUs {
			queues := map[string]int{}
			for _, q := range p.Queues {
				if q.GPUID == g.GPUID {
					queues[q.Type]++
				}
			}
			list := counted(queues)
			if p.PrivNote != "" {
				list = "unknown"
			}
			fmt.Fprintf(
				w, "%#x\t%d\t%#x\trenderD%d\t%s\t%s\t%s\n", g.GPUID, p.PID, g.DeviceID, g.RenderMinor,
				size(int64(g.VRAMSize)), kinds(g.BOs), list,
			)
		}
		if p.PrivNote != "" {
			fmt.Fprintf(w, "\t%d\tthe driver's private data cannot be read: %s\n", p.PID, p.PrivNote)
		}
	}
	for _, n := range r.RenderNodes {
		if len(n.BOs) > 0 {
			fmt.Fprintf(w, "%#x\t-\t-\t%s\t-\t%s\t-\n", n.GPUID, n.Image, kinds(n.BOs))
		}
	}
	printBOs(w, r.BOs, "IN")
}

// counted lists how often names occur, by name.
func counted(n map[string]int) string {
	var out []string
	for name, k := range n {
		out = append(out, fmt.Sprintf("%d %s", k, name))
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(after(a), after(b)) })
	return dash(strings.Join(out, ", "))
}

func after(s string) string { _, name, _ := strings.Cut(s, " "); return name }

func kinds(list []image.KindTotal) string {
	var out []string
	for _, t := range list {
		out = append(out, fmt.Sprintf("%d %s (%s)", t.Count, t.Kind, size(t.Bytes)))
	}
	return dash(strings.Join(out, ", "))
}

// printBOs lists the largest buffer objects, in the order of their images.
func printBOs(w io.Writer, list []gpu.BO, same string) {
	least := int64(0)
	if len(list) > maxBOs {
		sizes := make([]int64, len(list))
		for i := range list {
			sizes[i] = list[i].Size
		}
		slices.Sort(sizes)
		least = sizes[len(sizes)-maxBOs]
	}
	fmt.Fprintf(w, "\nBUFFER OBJECT\tGPU\tKIND\tADDRESS\tSIZE\tZERO\tSHARED\tUNIQUE\t%s\n", same)
	left := maxBOs
	for _, b := range list {
		if b.Size < least || left == 0 {
			continue
		}
		left--
		fmt.Fprintf(
			w, "%s\t%#x\t%s\t%#x\t%s\t%s\t%s\t%s\t%s\n", b.Name, b.GPUID, b.Kind, b.Addr, size(b.Size), size(b.Zero),
			size(b.Shared), size(b.Unique), dash(strings.Join(b.SameAs, ",")),
		)
	}
	if n := len(list) - maxBOs; n > 0 {
		fmt.Fprintf(w, "and %d smaller ones (--json lists all)\n", n)
	}
}
