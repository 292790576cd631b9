package lifecycle

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/index"
)

// metrics are the daemon's counters for Prometheus, in a registry of their own.
type metrics struct {
	log      *slog.Logger
	registry *prometheus.Registry
	reads    *prometheus.HistogramVec
}

func newMetrics(d *Daemon) *metrics {
	m := &metrics{
		log:      d.log,
		registry: prometheus.NewRegistry(),
		reads: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "gpucr_fs", Name: "store_read_seconds",
			Help:    "Time to read from a sealed file, by whether all of it was in memory.",
			Buckets: prometheus.ExponentialBuckets(16e-6, 4, 9), // 16 µs to 1 s
		}, []string{"cache"}),
	}
	m.registry.MustRegister(
		m.reads, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		storeCollector{d}, mountCollector{d}, remoteCollector{d},
	)
	return m
}

// observe is told every read of a sealed file.
func (m *metrics) observe(t time.Duration, _ int64, hit bool) {
	label := "miss"
	if hit {
		label = "hit"
	}
	m.reads.WithLabelValues(label).Observe(t.Seconds())
}

// handler answers Prometheus.
func (m *metrics) handler() http.Handler {
	warn := slog.NewLogLogger(m.log.Handler(), slog.LevelWarn)
	mux := http.NewServeMux()
	mux.Handle(
		"GET /metrics",
		promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorLog: warn, MaxRequestsInFlight: 4}),
	)
	return mux
}

// counter is one number of a struct of counters.
type counter[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(T) float64
}

func newCounter[T any](name, help string, kind prometheus.ValueType, labels []string, get func(T) float64) counter[T] {
	return counter[T]{prometheus.NewDesc("gpucr_fs_"+name, help, labels, nil), kind, get}
}

func storeCounter(name, help string, get func(index.Stats) int64) counter[index.Stats] {
	return newCounter(name, help, prometheus.CounterValue, nil, func(s index.Stats) float64 { return float64(get(s)) })
}

func storeGauge(name, help string, get func(index.Stats) int64) counter[index.Stats] {
	return newCounter(name, help, prometheus.GaugeValue, nil, func(s index.Stats) float64 { return float64(get(s)) })
}

var storeCounters = []counter[index.Stats]{
	storeCounter("cache_hits_total", "Chunk reads answered from memory.", func(s index.Stats) int64 { return s.Hits }),
	storeCounter(
		"cache_misses_total", "Chunk reads that went to a pack.", func(s index.Stats) int64 { return s.Misses },
	),
	storeCounter("read_bytes_total", "Bytes delivered to readers.", func(s index.Stats) int64 { return s.BytesRead }),
	storeCounter("fetched_bytes_total", "Bytes read from packs.", func(s index.Stats) int64 { return s.BytesFetched }),
	storeCounter(
		"written_bytes_total", "Bytes taken from writers.", func(s index.Stats) int64 { return s.BytesWritten },
	),
	storeCounter(
		"stored_bytes_total", "Payload bytes appended to packs.", func(s index.Stats) int64 { return s.BytesStored },
	),
	storeCounter("new_chunks_total", "Chunks stored.", func(s index.Stats) int64 { return s.ChunksNew }),
	storeCounter(
		"duplicate_chunks_total", "Chunks found stored already.", func(s index.Stats) int64 { return s.ChunksDup },
	),
	storeCounter(
		"zero_bytes_total", "Bytes recognised as zero runs.", func(s index.Stats) int64 { return s.ZeroBytes },
	),
	storeCounter("read_errors_total", "Reads that failed.", func(s index.Stats) int64 { return s.Errors }),
	storeGauge("cache_bytes", "Decoded chunks in memory.", func(s index.Stats) int64 { return s.CacheBytes }),
	storeGauge("open_drafts", "Checkpoints being written.", func(s index.Stats) int64 { return s.OpenDrafts }),
	storeGauge(
		"free_bytes", "Bytes left on the store's file system.", func(s index.Stats) int64 { return s.FreeBytes },
	),
}

// storeCollector reads the store's counters when Prometheus asks.
type storeCollector struct{ d *Daemon }

func (c storeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range storeCounters {
		ch <- m.desc
	}
}

func (c storeCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.d.store.Stats()
	for _, m := range storeCounters {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.get(s))
	}
}

func mountCounter(
	name, help string,
	kind prometheus.ValueType,
	get func(service.MountStats) float64,
) counter[service.MountStats] {
	return newCounter("mount_"+name, help, kind, []string{"dir"}, get)
}

var mountCounters = []counter[service.MountStats]{
	mountCounter(
		"opens_total", "Opens of sealed files.", prometheus.CounterValue,
		func(s service.MountStats) float64 { return float64(s.Opens) },
	),
	mountCounter(
		"reads_total", "Read requests of sealed content.", prometheus.CounterValue,
		func(s service.MountStats) float64 { return float64(s.Reads) },
	),
	mountCounter(
		"read_bytes_total", "Bytes answered to read requests.", prometheus.CounterValue,
		func(s service.MountStats) float64 { return float64(s.ReadBytes) },
	),
	mountCounter(
		"read_errors_total", "Read requests answered with an error.", prometheus.CounterValue,
		func(s service.MountStats) float64 { return float64(s.ReadErrors) },
	),
	mountCounter(
		"writes_total", "Write requests to checkpoints being written.", prometheus.CounterValue,
		func(s service.MountStats) float64 { return float64(s.Writes) },
	),
	mountCounter(
		"write_bytes_total", "Bytes taken by checkpoints being written.", prometheus.CounterValue,
		func(s service.MountStats) float64 { return float64(s.WriteBytes) },
	),
	mountCounter(
		"scratch_bytes", "Bytes of the store's file system that scratch files take.", prometheus.GaugeValue,
		func(s service.MountStats) float64 { return float64(s.ScratchBytes) },
	),
	mountCounter(
		"open_handles", "Files of checkpoints open now.", prometheus.GaugeValue,
		func(s service.MountStats) float64 { return float64(s.OpenHandles) },
	),
	mountCounter(
		"read_seconds_p50", "Median time of a read request.", prometheus.GaugeValue,
		func(s service.MountStats) float64 { return s.ReadP50.Seconds() },
	),
	mountCounter(
		"read_seconds_p90", "90th percentile of the time of a read request.", prometheus.GaugeValue,
		func(s service.MountStats) float64 { return s.ReadP90.Seconds() },
	),
	mountCounter(
		"read_seconds_p99", "99th percentile of the time of a read request.", prometheus.GaugeValue,
		func(s service.MountStats) float64 { return s.ReadP99.Seconds() },
	),
}

// mountCollector reads the mounts' counters when Prometheus asks.
type mountCollector struct{ d *Daemon }

func (c mountCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range mountCounters {
		ch <- m.desc
	}
}

func (c mountCollector) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.d.parts.Mounts.List() {
		s := service.MountStats{Stats: e.Stats()}
		for _, m := range mountCounters {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.get(s), e.Request.Dir)
		}
	}
}
