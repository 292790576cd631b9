package lifecycle

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

func remoteCounter(name, help string, get func(bucket.Counts) int64) counter[bucket.Counts] {
	return newCounter("remote_"+name, help, prometheus.CounterValue, []string{"kind"},
		func(c bucket.Counts) float64 { return float64(get(c)) })
}

var (
	remoteCounters = []counter[bucket.Counts]{
		remoteCounter("requests_total", "Requests to the bucket, each attempt as one.",
			func(c bucket.Counts) int64 { return c.Requests }),
		remoteCounter("bytes_total", "Bytes of content got from or put into the bucket.",
			func(c bucket.Counts) int64 { return c.Bytes }),
		remoteCounter("errors_total", "Requests to the bucket that failed.",
			func(c bucket.Counts) int64 { return c.Errors }),
		remoteCounter("retries_total", "Requests to the bucket that were made again.",
			func(c bucket.Counts) int64 { return c.Retries }),
	}
	remoteSeconds = prometheus.NewDesc("gpucr_fs_remote_request_seconds", "Time of a request to the bucket.",
		[]string{"kind"}, nil)
	remoteLacking = prometheus.NewDesc("gpucr_fs_remote_waiting", "Sealed checkpoints that wait to be uploaded.",
		nil, nil)
)

// remoteCollector reads the counters of the remote store when Prometheus asks.
type remoteCollector struct{ d *Daemon }

func (c remoteCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range remoteCounters {
		ch <- m.desc
	}
	ch <- remoteSeconds
	ch <- remoteLacking
}

func (c remoteCollector) Collect(ch chan<- prometheus.Metric) {
	if c.d.remote == nil {
		return
	}
	for kind, n := range c.d.remote.Counted() {
		for _, m := range remoteCounters {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.get(n), string(kind))
		}
		below, classes := uint64(0), map[float64]uint64{}
		for i, k := range n.Latencies[:len(n.Latencies)-1] {
			below += uint64(k)
			classes[bucket.LatencyBound(i).Seconds()] = below
		}
		ch <- prometheus.MustNewConstHistogram(remoteSeconds, uint64(n.Requests),
			n.Time.Seconds(), classes, string(kind))
	}
	if u := c.d.parts.Uploads; u != nil {
		ch <- prometheus.MustNewConstMetric(remoteLacking, prometheus.GaugeValue, float64(u.State().Waiting))
	}
}
