// Command benchgpu compares, in one run on the simulator, how long criu takes to restore a GPU process when its VRAM is
// filled by each task in turn (GPUCR_PARALLEL=0) and when it is filled beside everything else that criu does.
//
// The application has as much memory of its own as VRAM, spread evenly over its processes and GPUs. It is dumped once
// through a mount of a new store. Then unmodified criu restores it from a mount -n times in each of the two ways, in
// turns, with the images in the page cache and without. A time runs from the start of criu to its end, when all
// processes run; the least share that can be saved is what the shorter of the two halves takes. The simulated GPUs'
// links have the rate of PCIe 3 x16; the simulator tells which part of the fill they were busy.
//
// With lazy pages on top (gpucr-fs restore), resume waits for the VRAM alone, and with --vram=lazy for next to nothing;
// the time until all queues run is told beside it. Right before each time, more memory than
// is needed is touched and freed: see package measure. The first restore in each way is left to run until the
// application has verified every buffer object.
//
// At the end an application with many small buffer objects is restored in parallel, in turns with one with a single
// object of their total size and as much memory. Right before each restore of the many, as many requests as their fill
// makes for each of them are issued for which the simulator has nothing to do: what they take is its price, and not a
// driver's.
//
// CRIU's own plugin is the peer: built for the criu that is used, and named by -upstream, it restores the same images,
// and with -upstream-dump it has dumped them.
//
// A simulated copy takes the machine's memory bandwidth, as no GPU's does. Where copying all in all is hardly faster
// than the link, as on two cores with 16 GB/s, what is done beside it slows down; a lower -rate shows what a machine
// does whose memory is an order faster than the link.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/gpucr/gpucr-fs/kfd/kfdsim"
	"github.com/gpucr/gpucr-fs/tests/e2e/kfd/rig"
	"github.com/gpucr/gpucr-fs/tests/measure"
)

type options struct {
	vram        []uint64 // bytes, of all processes and GPUs together
	procs, gpus []int
	states      []string
	ways        []string
	rounds      int
	rate        float64
	cacheSize   string
	jsonFile    string
	upstream    string // folder of CRIU's own plugin, "" without
	theirDump   bool   // by that plugin
	memory      uint64 // of the processes beside VRAM, in bytes; 0: as much as VRAM
	small       int    // buffer objects of the application that has many
}

// States of the images and ways to restore.
const (
	cached = "cached"
	cold   = "cold"

	sequential = "sequential"
	parallel   = "parallel"
	lazy       = "lazy"
	onDemand   = "ondemand" // lazy, and VRAM too
	upstream   = "upstream"
)

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("benchgpu", flag.ContinueOnError)
	vram := f.String("vram", "512MiB,1GiB,2GiB", "sizes of VRAM, and of memory beside it")
	procs := f.String("procs", "1,2", "numbers of processes")
	gpus := f.String("gpus", "1,2", "numbers of GPUs")
	states := f.String("states", cached+","+cold, "of the images")
	ways := f.String("ways", strings.Join([]string{sequential, parallel, lazy, onDemand}, ","), "who fills VRAM when")
	f.IntVar(&o.rounds, "n", 5, "restores of each kind; the median counts")
	f.Float64Var(&o.rate, "rate", kfdsim.PCIe3x16, "bytes a second of a GPU's link, 0: no bound")
	f.StringVar(&o.cacheSize, "cache-size", "128MiB", "the daemon's --cache-size")
	f.StringVar(&o.upstream, "upstream", os.Getenv("AMDGPU_PLUGIN"),
		"measure CRIU's own amdgpu_plugin.so in `DIR` as well (default $AMDGPU_PLUGIN)")
	f.BoolVar(&o.theirDump, "upstream-dump", false, "have the plugin of -upstream dump what all restore")
	f.IntVar(&o.small, "small", 10_000, "`objects` of 4 to 256 KiB beside one as large as all of them; 0: none")
	f.StringVar(&o.jsonFile, "json", "", "write the results to `FILE`, too")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for s := range strings.SplitSeq(*vram, ",") {
		n, err := humanize.ParseBytes(s)
		if err != nil || n < 16<<20 {
			return o, fmt.Errorf("%q is not a size from 16MiB on", s)
		}
		o.vram = append(o.vram, n)
	}
	var err error
	if o.procs, err = numbers(*procs, 16); err != nil {
		return o, err
	}
	if o.gpus, err = numbers(*gpus, 8); err != nil {
		return o, err
	}
	if o.states, err = names(*states, cached, cold); err != nil {
		return o, err
	}
	if o.ways, err = names(*ways, sequential, parallel, lazy, onDemand); err != nil {
		return o, err
	}
	if o.upstream != "" {
		if o.upstream, err = filepath.Abs(o.upstream); err != nil {
			return o, err
		}
		if _, err := os.Stat(filepath.Join(o.upstream, "amdgpu_plugin.so")); err != nil {
			return o, fmt.Errorf("-upstream: %w", err)
		}
		o.ways = append(o.ways, upstream)
	}
	if o.theirDump && o.upstream == "" {
		return o, errors.New("-upstream-dump needs -upstream")
	}
	if o.small < 0 || o.small > 100_000 {
		return o, errors.New("-small must be from 0 to 100000")
	}
	if o.rounds < 1 || o.rate < 0 {
		return o, errors.New("-n must be 1 or more, -rate must not be negative")
	}
	return o, nil
}

func numbers(list string, most int) ([]int, error) {
	var out []int
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("%q is not a number from 1 to %d", s, most)
		}
		out = append(out, n)
	}
	return out, nil
}

func names(list string, known ...string) ([]string, error) {
	out := strings.Split(list, ",")
	for _, s := range out {
		if !slices.Contains(known, s) {
			return nil, fmt.Errorf("%q is none of %s", s, strings.Join(known, ", "))
		}
	}
	return out, nil
}

func main() { measure.Main("benchgpu", run) }

func run(ctx context.Context, args []string) (err error) {
	if len(args) == 3 && args[0] == requesting {
		return request(args[1], args[2])
	}
	o, err := parse(args)
	if err != nil {
		return err
	}
	res := &results{Rate: o.rate, Rounds: o.rounds}
	if res.Machine, err = measure.Describe(); err != nil {
		return err
	}
	t, err := newStage(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.RemoveBuilt()) }()
	err = t.play(func() {
		for _, vram := range o.vram {
			for _, procs := range o.procs {
				for _, gpus := range o.gpus {
					c := config{vram: vram, procs: procs, gpus: gpus}
					fmt.Fprintf(os.Stderr, "%s\n", c)
					sub, err := newStage(ctx)
					if err == nil {
						err = sub.play(func() { measureConfig(sub, o, c, &res.table) })
					}
					if err != nil {
						t.Fatalf("%s: %v", c, err)
					}
				}
			}
		}
	})
	if err == nil && o.small > 0 {
		err = measureSmall(ctx, o, res)
	}
	res.print(os.Stdout)
	if o.jsonFile != "" {
		b, jerr := json.MarshalIndent(res, "", "  ")
		err = errors.Join(err, jerr, os.WriteFile(filepath.Clean(o.jsonFile), append(b, '\n'), 0o644))
	}
	return err
}
