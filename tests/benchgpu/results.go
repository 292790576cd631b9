package main

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/gpucr/gpucr-fs/tests/measure"
)

// sample is one restore.
type sample struct {
	Seconds  float64   `json:"seconds"`
	Ready    float64   `json:"ready"`              // until all queues ran, in seconds
	Fill     float64   `json:"fill"`               // from the first to the last copy, in seconds
	Requests float64   `json:"requests,omitempty"` // see machine.requests, in seconds
	DMABytes uint64    `json:"dma_bytes"`
	Busy     []float64 `json:"dma_busy"` // for each GPU, the share of the time between its first and its last copy
}

// cell is one application restored in one way from images in one state.
type cell struct {
	VRAM    uint64   `json:"vram"`
	Procs   int      `json:"processes"`
	GPUs    int      `json:"gpus"`
	Objects int      `json:"small_objects,omitempty"`
	State   string   `json:"state"`
	Way     string   `json:"way"`
	Samples []sample `json:"samples"`
}

func (c *cell) config() config {
	return config{vram: c.VRAM, procs: c.Procs, gpus: c.GPUs, objects: c.Objects}
}

func (c *cell) median() float64 { return c.medianOf(func(s sample) float64 { return s.Seconds }) }

// ready is when queues ran.
func (c *cell) ready() float64 { return c.medianOf(func(s sample) float64 { return s.Ready }) }

func (c *cell) medianOf(what func(sample) float64) float64 {
	if c == nil {
		return math.NaN()
	}
	return measure.MedianOf(c.Samples, what)
}

// busy is the median share of the GPU that was busy least.
func (c *cell) busy() float64 {
	if c == nil {
		return math.NaN()
	}
	return measure.MedianOf(c.Samples, func(s sample) float64 { return slices.Min(s.Busy) })
}

type results struct {
	Machine measure.Machine `json:"machine"`
	Rate    float64         `json:"rate"`
	Rounds  int             `json:"rounds"`
	table
	// Small has an application with many small buffer objects, and one with a single one.
	Small table `json:"small"`
}

type table struct {
	Cells []*cell `json:"cells"`
}

func (r *table) cell(c config, state, way string) *cell {
	i := slices.IndexFunc(r.Cells, func(x *cell) bool {
		return x.config() == c && x.State == state && x.Way == way
	})
	if i < 0 {
		return nil
	}
	return r.Cells[i]
}

func (r *table) add(c config, state, way string, s sample) {
	x := r.cell(c, state, way)
	if x == nil {
		x = &cell{VRAM: c.vram, Procs: c.procs, GPUs: c.gpus, Objects: c.objects, State: state, Way: way}
		r.Cells = append(r.Cells, x)
	}
	x.Samples = append(x.Samples, s)
}

// configs are those measured, in order.
func (r *table) configs() []config {
	var out []config
	for _, x := range r.Cells {
		if c := x.config(); !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "Machine: %s. Simulated links of %.2f GB/s. Medians of %d.\n", r.Machine, r.Rate/1e9, r.Rounds)
	head, rule := "", ""
	peer := slices.ContainsFunc(r.Cells, func(c *cell) bool { return c.Way == upstream })
	if peer {
		head, rule = " criu's plugin s | parallel is less |", "---:|---:|"
	}
	fmt.Fprintf(w,
		"\n| VRAM | processes | GPUs | images | sequential s | parallel s | less | DMA busy | VRAM over rate s | "+
			"lazy s | GPUs ready s | VRAM on demand s | GPUs ready s |%s\n"+
			"|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|%s\n", head, rule)
	for _, c := range r.configs() {
		for _, state := range []string{cached, cold} {
			seq, par, lz, up := r.cell(c, state, sequential), r.cell(c, state, parallel), r.cell(c, state, lazy),
				r.cell(c, state, upstream)
			od := r.cell(c, state, onDemand)
			if seq == nil && par == nil && lz == nil && od == nil && up == nil {
				continue
			}
			fmt.Fprintf(w, "| %s | %d | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |",
				humanize.IBytes(c.vram), c.procs,
				c.gpus, state,
				seconds(seq.median()), seconds(par.median()), percent(1-par.median()/seq.median()), percent(par.busy()),
				seconds(r.wire(c)), seconds(lz.median()), seconds(lz.ready()), seconds(od.median()),
				seconds(od.ready()))
			if peer {
				fmt.Fprintf(w, " %s | %s |", seconds(up.median()), percent(1-par.median()/up.median()))
			}
			fmt.Fprintln(w)
		}
	}
	if len(r.Cells) > 0 {
		r.targets(w)
	}
	r.small(w)
}

// small compares many small buffer objects with one.
func (r *results) small(w io.Writer) {
	if len(r.Small.Cells) < 2 {
		return
	}
	many, one := r.Small.Cells[0], r.Small.Cells[1]
	fill := func(s sample) float64 { return s.Fill }
	requests := func(s sample) float64 { return s.Requests }
	fmt.Fprintf(w, "\n| buffer objects | VRAM | fill s | empty requests s | restore s |\n|---:|---:|---:|---:|---:|\n")
	for _, c := range r.Small.Cells {
		fmt.Fprintf(w, "| %d | %s | %s | %s | %s |\n", max(c.Objects, 1), humanize.IBytes(c.VRAM),
			seconds(c.medianOf(fill)), seconds(c.medianOf(requests)), seconds(c.median()))
	}
	// What a turn takes depends on when it was: only those of one turn are divided. A run that fails may leave the last
	// turn without its second half.
	var fills, restores, trips []float64
	for i, than := range one.Samples {
		s := many.Samples[i]
		fills, restores = append(fills, s.Fill/than.Fill), append(restores, s.Seconds/than.Seconds)
		trips = append(trips, s.Requests/than.Fill)
	}
	fmt.Fprintf(w, "\nMany take %.2f times as long to fill as one in the same turn (%.2f to %.2f; bound: 2), and %.1f "+
		"times as long to\nrestore. %d requests import and map them. If these are empty, the simulator, which is "+
		"another process, takes %.2f\ntimes as long for them as for that fill.\n", measure.Median(fills),
		slices.Min(fills), slices.Max(fills), measure.Median(restores), requestsOfObject*many.Objects,
		measure.Median(trips))
}

// wire is how long the VRAM is on the links at least, the GPUs' working side by side.
func (r *results) wire(c config) float64 {
	if r.Rate == 0 {
		return math.NaN()
	}
	return float64(c.vram) / float64(c.gpus) / r.Rate
}

func seconds(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.3f", v)
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*v)
}

// targets judges by the least that any application came to.
func (r *results) targets(w io.Writer) {
	worst := map[string]float64{}
	note := func(name string, v float64) {
		if old, ok := worst[name]; !math.IsNaN(v) && (!ok || v < old) {
			worst[name] = v
		}
	}
	const (
		warmOne  = "parallel, page-cached, one process: less time"
		coldOne  = "parallel, cold, one process: less time"
		warmTwo  = "parallel, page-cached, several processes: less time"
		peerOne  = "parallel, page-cached, one process: less time than criu's plugin"
		peerCold = "parallel, cold, one process: less time than criu's plugin"
		peerTwo  = "parallel, page-cached, several processes: less time than criu's plugin"
		busy     = "DMA busy, page-cached, of the fill"
		onTime   = "lazy, page-cached: VRAM over rate, of the time until resume"
	)
	for _, c := range r.configs() {
		less := func(state, than string) float64 {
			return 1 - r.cell(c, state, parallel).median()/r.cell(c, state, than).median()
		}
		if c.procs == 1 {
			note(warmOne, less(cached, sequential))
			note(coldOne, less(cold, sequential))
			note(peerOne, less(cached, upstream))
			note(peerCold, less(cold, upstream))
		} else {
			note(warmTwo, less(cached, sequential))
			note(peerTwo, less(cached, upstream))
		}
		note(busy, r.cell(c, cached, parallel).busy())
		note(onTime, r.wire(c)/r.cell(c, cached, lazy).median())
	}
	fmt.Fprintf(w, "\n| target | at least | worst case | |\n|---|---:|---:|---|\n")
	for _, t := range []struct {
		name  string
		bound float64
	}{{warmOne, 0.343}, {coldOne, 0.076}, {warmTwo, 0.343}, {peerOne, 0.343}, {peerCold, 0.076}, {peerTwo, 0.343},
		{busy, 0.85}, {onTime, 1 / 1.15}} {
		v, ok := worst[t.name]
		if !ok {
			continue
		}
		verdict := "FAIL"
		if v >= t.bound {
			verdict = "PASS"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", t.name, percent(t.bound), percent(v), verdict)
	}
}
