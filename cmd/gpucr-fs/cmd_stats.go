package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

func (a *app) statsCmd() *cobra.Command {
	var watch bool
	var interval time.Duration
	c := &cobra.Command{
		Use:   "stats STORE",
		Short: "show live counters: hits, misses, bytes, latencies",
		Long: `Stats shows what the store and its mounts have done since the daemon opened the store. With --watch it
prints one line every interval, until you interrupt it or the daemon ends; each line counts from the line before.
Latencies are those of the kernel's read requests; reads that the page cache answers are not among them. With a
remote store, stats also shows requests to the bucket, counting each attempt, and what is being uploaded.`,
		Example: "  gpucr-fs stats store/\n  gpucr-fs stats --watch --interval 2s store/",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			if watch {
				return a.watchStats(cmd.Context(), args[0], interval)
			}
			res, err := do(cmd.Context(), a, args[0], "", service.LiveStats, service.StatsRequest{})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { printStats(w, res) })
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "print one line every interval")
	c.Flags().DurationVar(&interval, "interval", time.Second, "time between lines of --watch, like 2s")
	return c
}

func printStats(w io.Writer, r service.StatsResult) {
	s := r.Store
	if r.Daemon {
		fmt.Fprintf(w, "daemon\tpid %d, since %s\n", r.PID, when(r.Since))
	} else {
		fmt.Fprintf(w, "daemon\tnone\n")
	}
	fmt.Fprintf(
		w,
		"cache\t%d hits, %d misses, %s held\nread\t%s delivered, %s from packs\n"+
			"written\t%s taken, %s stored, %s zero\nchunks\t%d new, %d found stored already\nerrors\t%d\n"+
			"drafts\t%d\nfree\t%s\n",
		s.Hits,
		s.Misses,
		size(s.CacheBytes),
		size(s.BytesRead),
		size(s.BytesFetched),
		size(s.BytesWritten),
		size(s.BytesStored),
		size(s.ZeroBytes),
		s.ChunksNew,
		s.ChunksDup,
		s.Errors,
		s.OpenDrafts,
		size(s.FreeBytes),
	)
	for _, m := range r.Mounts {
		fmt.Fprintf(
			w, "mount\t%s: %d reads, %s, p50 %v, p90 %v, p99 %v, max %v, %d errors, %d writes, %s\n", m.Dir, m.Reads,
			size(m.ReadBytes), m.ReadP50, m.ReadP90, m.ReadP99, m.ReadMax, m.ReadErrors, m.Writes, size(m.WriteBytes),
		)
	}
	for _, k := range bucket.Kinds() {
		if c := r.Requests[k]; c.Requests > 0 {
			fmt.Fprintf(
				w, "bucket %s\t%d requests, %s, %d errors, %d made again, p50 < %v, p99 < %v\n", k, c.Requests,
				size(c.Bytes), c.Errors, c.Retries, c.Quantile(0.5), c.Quantile(0.99),
			)
		}
	}
	if u := r.Uploads; u != nil && u.Name != "" {
		fmt.Fprintf(w, "uploading\t%s: %s of %s; %d wait\n", u.Name, size(u.Done), size(u.Total), u.Waiting-1)
	} else if u != nil {
		for _, name := range slices.Sorted(maps.Keys(u.Failed)) {
			fmt.Fprintf(w, "not uploaded\t%s: %s\n", name, u.Failed[name])
		}
	}
	for _, x := range r.Restores {
		fmt.Fprintf(
			w, "restore\t%s: %s of %s to come, %d faults\n", x.Checkpoint, size(x.Missing), size(x.Total), x.Faults,
		)
	}
}

// watchStats prints a line for every interval. It needs a daemon: a store opened for one look has done nothing.
func (a *app) watchStats(ctx context.Context, dir string, interval time.Duration) error {
	if interval <= 0 {
		return usage(fmt.Errorf("an interval of %v", interval), "give one like 2s")
	}
	var last service.StatsResult
	for n := 0; ; n++ {
		res, ok, err := daemonStats(ctx, dir)
		switch {
		case ctx.Err() != nil, !ok && err == nil && n > 0:
			return nil
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("nothing of %s is mounted", dir)
		}
		if n == 0 {
			last = res // there is no line before the first
		}
		shown := res
		shown.Mounts = readsSince(res.Mounts, last.Mounts)
		if err := a.printTick(shown, last, n, interval); err != nil {
			return err
		}
		last = res
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// readsSince gives mounts with the times of the reads since an earlier look alone.
func readsSince(mounts, before []service.MountStats) []service.MountStats {
	out := slices.Clone(mounts)
	for i, m := range out {
		for _, b := range before {
			if b.Dir == m.Dir && b.Since.Equal(m.Since) {
				out[i].Stats = m.Stats.Since(b.Stats)
			}
		}
	}
	return out
}

// daemonStats asks a daemon; ok is false when none runs.
func daemonStats(ctx context.Context, dir string) (res service.StatsResult, ok bool, err error) {
	s, ok, err := client.ConnectDaemon(ctx, dir)
	if err != nil || !ok {
		return res, ok, err
	}
	defer s.Close()
	res, err = service.LiveStats.Do(ctx, s, service.StatsRequest{}, wire.Streams{})
	return res, true, err
}

func (a *app) printTick(res, last service.StatsResult, n int, interval time.Duration) error {
	if a.json {
		return json.NewEncoder(a.out).Encode(res) // one line each
	}
	return a.print(res, func(w io.Writer) {
		const row = "%-10s%-10s%-8s%-12s%-12s%-12s%-10s%-10s%-10s%s\n"
		if n%20 == 0 {
			fmt.Fprintf(
				w, row, "hits", "misses", "hit %", "read/s", "packs/s", "write/s", "p50", "p90", "p99", "errors",
			)
		}
		hits, misses := res.Store.Hits-last.Store.Hits, res.Store.Misses-last.Store.Misses
		share := "-"
		if hits+misses > 0 {
			share = fmt.Sprintf("%.1f", 100*float64(hits)/float64(hits+misses))
		}
		per := func(now, before int64) string { return speed(float64(now-before) / interval.Seconds()) }
		var p50, p90, p99 time.Duration
		for _, m := range res.Mounts {
			p50, p90, p99 = max(p50, m.ReadP50), max(p90, m.ReadP90), max(p99, m.ReadP99)
		}
		fmt.Fprintf(w, row, fmt.Sprint(hits), fmt.Sprint(misses), share, per(res.Store.BytesRead, last.Store.BytesRead),
			per(res.Store.BytesFetched, last.Store.BytesFetched), per(res.Store.BytesWritten, last.Store.BytesWritten),
			latency(p50), latency(p90), latency(p99), fmt.Sprint(res.Store.Errors))
	})
}

// latency shows the time that reads took, of which there may have been none.
func latency(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return d.Round(time.Microsecond).String()
}
