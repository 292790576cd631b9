package topology

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Explanation says why a checkpoint's GPUs cannot be mapped onto a host's.
type Explanation struct {
	// Waive is a smallest set of further checks without which a mapping
	// exists; none if no set helps.
	Waive []Switch `json:"waive,omitempty"`
	// GPUs tells, GPU by GPU, what stands in the way. With Waive the
	// candidates are those of the mapping that it allows; else the host's
	// GPUs that are closest. GPUs that nothing keeps from their candidate are
	// left out.
	GPUs []GPUObstacle `json:"gpus,omitempty"`
	// Reasons are about more than a pair of GPUs; a line each.
	Reasons []string `json:"reasons,omitempty"`
}

// GPUObstacle is what keeps a GPU of the checkpoint from its best candidate.
type GPUObstacle struct {
	Pair
	Mismatches []Mismatch `json:"mismatches"`
}

// Lines tells the explanation to a user, a fact a line.
func (e *Explanation) Lines() []string {
	out := slices.Clone(e.Reasons)
	for _, g := range e.GPUs {
		for _, m := range g.Mismatches {
			out = append(out, fmt.Sprintf("GPU %#x onto %#x: %s", g.Src, g.Dst, m))
		}
	}
	if len(e.Waive) > 0 {
		var set []string
		for _, s := range e.Waive {
			set = append(set, s.String()+"=0")
		}
		out = append(out, "hint: the checkpoint maps onto this host with "+strings.Join(set, " "))
	}
	return out
}

// Explain says why [Map] finds no mapping; nil if it finds one.
func Explain(src, dst *System, w Waived) *Explanation {
	if _, ok := Map(src, dst, w); ok {
		return nil
	}
	e := &Explanation{}
	if reason := partitions(src, dst); reason != "" {
		e.Reasons = append(e.Reasons, reason)
	}
	if s, d := len(src.GPUs()), len(dst.GPUs()); s != d {
		e.Reasons = append(e.Reasons,
			fmt.Sprintf("the checkpoint was made with %s visible, this host shows %s: the numbers must be equal",
				plural(s, "GPU"), plural(d, "GPU")))
		// With a GPU more or less, links differ anyway: properties alone tell
		// more.
		e.GPUs = closest(src, dst, func(s, d *Node) []Mismatch { return Mismatches(s, d, w) })
		return e
	}
	if more, m := smallestWaiver(src, dst, w); m != nil {
		e.Waive = more.List()
		for _, p := range m.GPUs {
			if mm := pairMismatches(src, dst, src.GPU(p.Src), dst.GPU(p.Dst), w); len(mm) > 0 {
				e.GPUs = append(e.GPUs, GPUObstacle{p, mm})
			}
		}
		if more.Has(NUMA) {
			e.Reasons = append(e.Reasons,
				fmt.Sprintf("the GPUs would not keep their CPUs: %s (%s=0 waives this)", cpuLinks(src), NUMA))
		}
		return e
	}
	e.GPUs = closest(src, dst, func(s, d *Node) []Mismatch { return pairMismatches(src, dst, s, d, w) })
	e.Reasons = append(e.Reasons, unwaivable(src, dst)...)
	return e
}

// partitions finds that the checkpoint's GPUs and this host's are of the same devices, which are cut into
// partitions otherwise; "" where that is not so.
func partitions(src, dst *System) string {
	reason := ""
	for _, s := range src.GPUs() {
		for _, d := range dst.GPUs() {
			a, b := s.Props[SIMDCount], d.Props[SIMDCount]
			switch {
			case s.Props[VendorID] != d.Props[VendorID] || s.Props[DeviceID] != d.Props[DeviceID] || a == 0 || b == 0 ||
				a*d.Props[ArrayCount] != b*s.Props[ArrayCount]:
			case a == b:
				return "" // some fit
			case b%a == 0:
				reason = fmt.Sprintf("a GPU of the checkpoint is a partition of 1/%d of a GPU of this host", b/a)
			case a%b == 0:
				reason = fmt.Sprintf("a GPU of this host is a partition of 1/%d of a GPU of the checkpoint", a/b)
			}
		}
	}
	if reason == "" {
		return ""
	}
	return "the devices are partitioned otherwise here: " + reason + " (hint: amd-smi set --compute-partition)"
}

// smallestWaiver returns the fewest further checks whose waiving allows a
// mapping, and that mapping; nil if all of them do not.
func smallestWaiver(src, dst *System, w Waived) (Waived, *Mapping) {
	every := Waive(Switches()...)
	if _, ok := Map(src, dst, every); !ok {
		return 0, nil
	}
	var sets []Waived
	for more := range every + 1 {
		if more != 0 && more&w == 0 {
			sets = append(sets, more)
		}
	}
	slices.SortStableFunc(sets, func(a, b Waived) int {
		return cmp.Compare(bits.OnesCount8(uint8(a)), bits.OnesCount8(uint8(b)))
	})
	for _, more := range sets {
		if m, ok := Map(src, dst, w|more); ok {
			return more, m
		}
	}
	return 0, nil
}

// closest lists the GPUs of the checkpoint that fit none of the host's, each
// with the candidate that has the fewest mismatches, unwaivable ones counting
// most.
func closest(src, dst *System, compare func(s, d *Node) []Mismatch) []GPUObstacle {
	var out []GPUObstacle
	for _, s := range src.GPUs() {
		var best *GPUObstacle
		for _, d := range dst.GPUs() {
			o := GPUObstacle{Pair{s.GPUID, d.GPUID}, compare(s, d)}
			if best == nil || weight(o.Mismatches) < weight(best.Mismatches) {
				best = &o
			}
		}
		if best != nil && len(best.Mismatches) > 0 {
			out = append(out, *best)
		}
	}
	return out
}

func weight(mm []Mismatch) int {
	n := len(mm)
	for _, m := range mm {
		if m.Switch == nil {
			n += 100
		}
	}
	return n
}

// pairMismatches is [Mismatches] and the count of usable links.
func pairMismatches(src, dst *System, s, d *Node, w Waived) []Mismatch {
	out := Mismatches(s, d, w)
	if need, have := src.usable(s), dst.usable(d); need > have {
		out = append(out, Mismatch{Property: usableLinks, Need: uint64(need), Have: uint64(have), AtLeast: true})
	}
	return out
}

// unwaivable finds which of the rules about more than a pair stand in the way
// though all switches are off. It has nothing to say when some GPU has no
// candidate even then.
func unwaivable(src, dst *System) []string {
	every := Waive(Switches()...)
	p := newProblem(src, dst, every, 0)
	if _, few := matchAll(len(p.src), len(p.dst), p.allowed); few != nil {
		var ids, onto []string
		for _, i := range few {
			ids = append(ids, fmt.Sprintf("%#x", p.src[i].GPUID))
		}
		for j, d := range p.dst {
			if slices.ContainsFunc(few, func(i int) bool { return p.allowed(i, j) }) {
				onto = append(onto, fmt.Sprintf("%#x", d.GPUID))
			}
		}
		if len(onto) == 0 {
			return nil
		}
		return []string{fmt.Sprintf("GPUs %s of the checkpoint fit only %s of this host", strings.Join(ids, ", "),
			strings.Join(onto, ", "))}
	}
	feasible := func(c constraints) bool { _, ok := newProblem(src, dst, every, c).solve(); return ok }
	hives := fmt.Sprintf("the checkpoint's XGMI hives (%s) do not fit into this host's (%s)", hiveSizes(src),
		hiveSizes(dst))
	links := fmt.Sprintf("links to CPUs have no counterpart of at least their kind: "+
		"the checkpoint has %s, this host %s", cpuLinks(src), cpuLinks(dst))
	switch {
	case !feasible(withHives):
		return []string{hives}
	case !feasible(withCPULinks):
		return []string{links}
	}
	return []string{hives + " once links to CPUs are kept", links}
}

// hiveSizes lists the hives by their GPUs.
func hiveSizes(s *System) string {
	var out []string
	for _, h := range s.Hives() {
		var ids []string
		for _, n := range h {
			ids = append(ids, fmt.Sprintf("%#x", n.GPUID))
		}
		out = append(out, strings.Join(ids, "+"))
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

// cpuLinks lists the GPUs of each CPU with the type of their link.
func cpuLinks(s *System) string {
	var out []string
	for _, cpu := range s.Nodes {
		var ids []string
		for _, g := range s.GPUs() {
			for _, l := range g.Links {
				if !cpu.IsGPU() && l.To == cpu.ID {
					way := "one-way"
					if bidirectional(g, l, cpu) {
						way = "both ways"
					}
					ids = append(ids, fmt.Sprintf("%#x (%s, %s)", g.GPUID, l.Type, way))
				}
			}
		}
		if len(ids) > 0 {
			out = append(out, fmt.Sprintf("CPU %d with GPUs %s", cpu.ID, strings.Join(ids, ", ")))
		}
	}
	if len(out) == 0 {
		return "no links to CPUs"
	}
	return strings.Join(out, "; ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
