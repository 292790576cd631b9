package main

import (
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/tests/measure"
	"github.com/gpucr/gpucr-fs/tests/slowlink"
)

// figures are seconds from the command on, and what came over the link.
type figures struct {
	Resume   float64 `json:"resume"`
	Response float64 `json:"response"`
	Resident float64 `json:"resident"`
	Received int64   `json:"received"` // bytes
	Requests int64   `json:"requests"`
	PeakMB   float64 `json:"peak_mb,omitempty"` // of the daemon
}

func (f *figures) count(c slowlink.Counts) { f.Received, f.Requests = c.Received, c.Requests }

// row is a line of the table: one way to restore one size.
type row struct {
	MB      int       `json:"mb"`
	Way     string    `json:"way"`
	Samples []figures `json:"samples"`
}

// of gives the median of one figure.
func (r *row) of(get func(figures) float64) float64 { return measure.MedianOf(r.Samples, get) }

func resume(f figures) float64   { return f.Resume }
func response(f figures) float64 { return f.Response }
func resident(f figures) float64 { return f.Resident }
func received(f figures) float64 { return float64(f.Received) }
func requests(f figures) float64 { return float64(f.Requests) }

// peak is the largest of all rounds.
func (r *row) peak() float64 {
	var most float64
	for _, f := range r.Samples {
		most = max(most, f.PeakMB)
	}
	return most
}

// size is what the bucket has of a process.
type size struct {
	MB          int              `json:"mb"`
	Stored      map[string]int64 `json:"stored"`       // bytes of each checkpoint's objects
	SyncSeconds float64          `json:"sync_seconds"` // of the first one
	Link        float64          `json:"link"`         // bytes a second to one who only reads
	Dumps       []dumped         `json:"dumps"`
	Second      second           `json:"second"`
}

// dump gives the median of one figure of the dumps.
func (z *size) dump(get func(dumped) float64) float64 { return measure.MedianOf(z.Dumps, get) }

func local(d dumped) float64   { return d.Local }
func sealed(d dumped) float64  { return d.Sealed }
func durable(d dumped) float64 { return d.Durable }
func sent(d dumped) float64    { return float64(d.Sent) }

// target is a promise and how it went.
type target struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Bound float64 `json:"bound"` // a greatest value
	Pass  bool    `json:"pass"`
}

type results struct {
	Machine measure.Machine `json:"machine"`
	Rates   slowlink.Rates  `json:"rates"`
	Sizes   []*size         `json:"sizes"`
	Rows    []*row          `json:"rows"`
	Targets []target        `json:"targets"`
}

func (r *results) find(mb int, way string) *row {
	for _, x := range r.Rows {
		if x.MB == mb && x.Way == way {
			return x
		}
	}
	return nil
}

func (r *results) add(mb int, way string, f figures) {
	x := r.find(mb, way)
	if x == nil {
		x = &row{MB: mb, Way: way}
		r.Rows = append(r.Rows, x)
	}
	x.Samples = append(x.Samples, f)
}

// judge works out the targets from what was measured; what was left out leaves its targets out.
func (r *results) judge() {
	for _, z := range r.Sizes {
		target := func(name string, value, bound float64) {
			r.Targets = append(r.Targets, target{fmt.Sprintf("%d MB, %s", z.MB, name), value, bound, value <= bound})
		}
		target("dump sealed with a bucket, of the time without one", z.dump(sealed)/z.dump(local), 1.1)
		if r.Rates.All > 0 {
			// At 0.8 of the bandwidth, if nothing is sent before the seal.
			target("durable after the seal, of sent bytes over the bandwidth",
				(z.dump(durable)-z.dump(sealed))/(z.dump(sent)/float64(r.Rates.All)), 1/0.8)
		}
		target("sent of a second process of the model, of what it adds to a store",
			float64(z.Second.Sent)/float64(z.Second.Adds), 1.03)
		x := r.find(z.MB, wayProfile)
		if x == nil {
			continue
		}
		if c := r.find(z.MB, wayRclone); c != nil {
			target("first response with a profile, of rclone + criu's", x.of(response)/c.of(response), 0.10)
		}
		stored := float64(z.Stored[profiledName])
		if r.Rates.All > 0 {
			target("resident with a profile, of stored bytes over the bandwidth",
				x.of(resident)/(stored/float64(r.Rates.All)), 1.15)
		}
		target("bytes fetched, of those stored", x.of(received)/stored, 1.03)
		target("requests", x.of(requests), stored/(2<<20)+100)
		warm, local := r.find(z.MB, wayWarm), r.find(z.MB, wayLocal)
		if warm != nil && local != nil {
			target("response with the cache warm, of the local store's", warm.of(response)/local.of(response), 1.1)
			target("resident with the cache warm, of the local store's", warm.of(resident)/local.of(resident), 1.1)
		}
	}
}

func (r *results) print(w io.Writer) {
	fmt.Fprintf(w, "%s. Medians. The link: %v to the first byte, %.0f MB/s a connection, %.0f MB/s in all.\n\n",
		r.Machine, r.Rates.Delay, float64(r.Rates.Connection)/1e6, float64(r.Rates.All)/1e6)
	fmt.Fprintf(
		w,
		"| process | restored by | times | resume s | first response s | resident s | fetched MB | requests | "+
			"daemon's peak MB |\n",
	)
	fmt.Fprintf(w, "|---|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, x := range r.Rows {
		peak := ""
		if p := x.peak(); p > 0 {
			peak = fmt.Sprintf("%.0f", p)
		}
		fmt.Fprintf(w, "| %d MB | %s | %d | %.3f | %.3f | %.3f | %.1f | %.0f | %s |\n", x.MB, x.Way,
			len(x.Samples), x.of(resume), x.of(response), x.of(resident), x.of(received)/1e6, x.of(requests), peak)
	}
	fmt.Fprintf(
		w,
		"\n| process | stored MB | with profile and hot set | sync MB/s | link alone MB/s |\n"+
			"|---|---:|---:|---:|---:|\n",
	)
	for _, z := range r.Sizes {
		stored := float64(z.Stored[plainName]) / 1e6
		fmt.Fprintf(w, "| %d MB | %.1f | %.1f | %.0f | %.0f |\n", z.MB, stored, float64(z.Stored[profiledName])/1e6,
			stored/z.SyncSeconds, z.Link/1e6)
	}
	fmt.Fprintf(w, "\n| process | dump sealed s | with a bucket s | durable s | sent MB | second process: sent MB | "+
		"adds MB |\n|---|---:|---:|---:|---:|---:|---:|\n")
	for _, z := range r.Sizes {
		fmt.Fprintf(w, "| %d MB | %.3f | %.3f | %.3f | %.1f | %.1f | %.1f |\n", z.MB, z.dump(local), z.dump(sealed),
			z.dump(durable), z.dump(sent)/1e6, float64(z.Second.Sent)/1e6, float64(z.Second.Adds)/1e6)
	}
	if len(r.Targets) == 0 {
		return
	}
	fmt.Fprintf(w, "\n| target | bound | measured | |\n|---|---:|---:|---|\n")
	for _, t := range r.Targets {
		verdict := "FAIL"
		if t.Pass {
			verdict = "PASS"
		}
		fmt.Fprintf(w, "| %s | ≤ %.2f | %.2f | %s |\n", t.Name, t.Bound, t.Value, verdict)
	}
}
