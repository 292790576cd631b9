package feed

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/gpucr/gpucr-fs/prefetch"
)

// Warm reads ranges of the named files, so that what lies below has them in memory. tell is called now and then with
// the bytes read.
func Warm(ctx context.Context, images Images, names []string, want []prefetch.Range, rate int64, log *slog.Logger,
	tell func(int64)) (st prefetch.Stats, err error) {
	files, done, err := open(images, names)
	if err != nil {
		return st, err
	}
	defer func() { err = errors.Join(err, done()) }()
	q, err := prefetch.New(prefetch.Options{Files: files, Names: names, Rate: rate, Logger: log})
	if err != nil {
		return st, err
	}
	defer q.Close()
	warmHot(images)
	q.Sweep(want)
	stop := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		t := time.NewTicker(100 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				tell(q.Stats().SweepBytes)
			case <-stop:
				return
			}
		}
	}()
	err = q.Drain(ctx)
	close(stop)
	<-told
	return q.Stats(), err
}
