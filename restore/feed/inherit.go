package feed

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpucr/gpucr-fs/restore/cow"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// inherit leaves to CRIU the pages that processes share with those they were forked from, see package cow. It
// gives the page maps that CRIU has to see for that, by name; nil when there are no such pages.
func inherit(images Images, c *criuimg.Checkpoint, log *slog.Logger) (maps map[string][]byte, err error) {
	if len(c.Inherited()) == 0 {
		return nil, nil
	}
	files := map[string]cow.File{}
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.(File).Close())
		}
	}()
	for _, t := range c.Tasks {
		for _, r := range t.Ranges {
			if files[r.File] != nil {
				continue
			}
			f, err := images.Open(r.File)
			if err != nil {
				return nil, fmt.Errorf("open %s: %w", r.File, err)
			}
			stored, ok := f.(cow.File)
			if !ok {
				return nil, f.Close() // of a plain directory, which nobody shows otherwise than it is
			}
			files[r.File] = stored
		}
	}
	begin := time.Now()
	maps = map[string][]byte{}
	var left uint64
	for i, spans := range cow.Find(c, files) {
		if len(spans) == 0 {
			continue
		}
		t := &c.Tasks[i]
		before := t.LazyBytes()
		t.DropRanges(spans)
		left += before - t.LazyBytes()
		if maps[t.PagemapName()], err = criuimg.InheritPagemap(images.FS(), t.PID, spans); err != nil {
			return nil, err
		}
	}
	log.Info("looked for memory that processes share", "bytes", left, "took", time.Since(begin))
	return maps, nil
}
