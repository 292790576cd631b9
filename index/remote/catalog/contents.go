package catalog

import (
	"context"
	"strings"

	"github.com/gpucr/gpucr-fs/index/remote/bucket"
)

// Used says whether a bucket holds a root or a pack.
func Used(ctx context.Context, b bucket.Bucket) (bool, error) {
	for _, dir := range [...]string{rootDir, packDir} {
		for _, err := range bucket.All(ctx, bucket.Retry(b, 5, bucket.Backoff), dir) {
			return err == nil, err
		}
	}
	return false, nil
}

// Contents is what a bucket holds.
type Contents struct {
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
	Packs   int64 `json:"packs"`      // pack and list objects, waste included
	InPacks int64 `json:"pack_bytes"` // bytes of these
}

// Contents lists the bucket, a thousand objects a request.
func (c *Catalog) Contents(ctx context.Context) (all Contents, err error) {
	for info, err := range bucket.All(ctx, c.b, "") {
		if err != nil {
			return all, err
		}
		all.Objects++
		all.Bytes += info.Size
		if strings.HasPrefix(info.Key, packDir) {
			all.Packs++
			all.InPacks += info.Size
		}
	}
	return all, nil
}
