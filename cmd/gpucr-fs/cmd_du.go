package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

func (a *app) duCmd() *cobra.Command {
	var prices []string
	c := &cobra.Command{
		Use:   "du STORE",
		Short: "account for the bytes of a store",
		Long: `Du shows what takes space in a store. Logical is the sum of the sizes of all files. Zero bytes are
not stored. Distinct is the size of all different chunks, and stored is what they take on disk, compressed. Disk is
what the store's folder takes, including index and journals. Reclaimable is what gc would give back now.

With a remote store, local is what was sealed here, and cache is what was fetched. Bucket is what the remote store
holds for all machines. Requests are those of this store so far; beside them du shows what they would cost in a month
at this rate, with the --price of 1,000 requests of each kind.`,
		Example: "  gpucr-fs du store/\n  gpucr-fs du --json store/",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			price, err := parsePrices(prices)
			if err != nil {
				return err
			}
			u, err := do(cmd.Context(), a, args[0], "", service.Usage, service.UsageRequest{})
			if err != nil {
				return err
			}
			return errors.Join(a.print(u, func(w io.Writer) {
				checkpointTable(w, u.Checkpoints, nil)
				fmt.Fprintf(
					w,
					"\nlogical\t%s in %d checkpoints\nzero\t%s\ndistinct\t%s in %d chunks\nstored\t%s in %d packs\n"+
						"dedupe\t%.2f times\ndisk\t%s\nreclaimable\t%s\n",
					size(u.Logical),
					len(u.Checkpoints),
					size(u.Zero),
					size(u.Distinct),
					u.Chunks,
					size(u.Stored),
					u.Packs,
					u.DedupeRatio,
					size(u.Disk),
					size(u.Reclaimable),
				)
				if u.Remote != nil {
					printRemote(w, u.Disk, u.Remote, price)
				}
			}), damageOf("du", u.Checkpoints))
		},
	}
	c.Flags().
		StringSliceVar(&prices, "price", []string{"get=0.0004", "put=0.005", "list=0.005", "delete=0", "head=0.0004"},
			"price of 1,000 requests of a `KIND=PRICE`, may be given again; what is left out costs nothing")
	return c
}

// parsePrices reads what 1,000 requests of a kind cost.
func parsePrices(list []string) (map[bucket.Kind]float64, error) {
	out := map[bucket.Kind]float64{}
	for _, s := range list {
		kind, price, ok := strings.Cut(s, "=")
		v, err := strconv.ParseFloat(price, 64)
		if !ok || err != nil || v < 0 || math.IsInf(v, 0) || math.IsNaN(v) ||
			!slices.Contains(bucket.Kinds(), bucket.Kind(kind)) {
			return nil, usage(
				fmt.Errorf("a price %.40q", s),
				"give one like put=0.005, of get, put, list, delete or head",
			)
		}
		out[bucket.Kind(kind)] = v
	}
	return out, nil
}

// printRemote shows what a remote store and the cache of it take.
func printRemote(w io.Writer, disk int64, r *remotes.Account, price map[bucket.Kind]float64) {
	fmt.Fprintf(w, "local\t%s\ncache\t%s, of %s at most\n", size(max(0, disk-r.Cache)), size(r.Cache), size(r.Limit))
	if b := r.Bucket; b != nil {
		fmt.Fprintf(w, "bucket\t%s in %d objects, %s in %d packs\n", size(b.Bytes), b.Objects, size(b.InPacks), b.Packs)
	} else {
		fmt.Fprintf(w, "bucket\tunknown: %s\n", r.Problem)
	}
	cost := 0.0
	for _, k := range bucket.Kinds() {
		c := r.Requests.Kinds[k]
		month := r.PerMonth[k] * price[k] / 1000
		cost += month
		fmt.Fprintf(w, "%s\t%d requests, %s, %.2f a month\n", k, c.Requests, size(c.Bytes), month)
	}
	fmt.Fprintf(w, "requests\t%.2f a month at the rate since %s\n", cost, when(r.Requests.Since))
}
