package feed

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/prefetch"
)

// HotKeeper is implemented by images beside which a packed hot set can be kept.
type HotKeeper interface {
	// HotSet opens it; index.NotFound when there is none.
	HotSet() (index.HotSet, error)
	// SetHotSet keeps another one, of about size bytes.
	SetHotSet(size int64, write func(io.Writer) error) error
}

// HotSet and SetHotSet are the store's.
func (s Stored) HotSet() (index.HotSet, error) { return s.Store.HotSet(s.Ref) }
func (s Stored) SetHotSet(size int64, write func(io.Writer) error) error {
	return s.Store.SetHotSet(s.Ref, size, write)
}

// openHot opens the packed hot set of the images, and gives the chunks that hold it where it lies in a bucket. Without
// one, or with a damaged one, everything is fetched from where it is stored.
func openHot(o Options, names []string) (*prefetch.Packed, []index.Chunk) {
	k, ok := o.Images.(HotKeeper)
	if !ok {
		return nil, nil
	}
	f, err := k.HotSet()
	if err == nil {
		var p *prefetch.Packed
		if p, err = prefetch.OpenPacked(f, f.Size(), names); err == nil {
			return p, f.Pieces()
		}
	}
	if index.ClassOf(err) != index.NotFound {
		o.Logger.Warn("the packed hot set cannot be used", "error", err)
	}
	return nil, nil
}

// warmHot reads the packed hot set, if there is one, so that the kernel has it in memory.
func warmHot(images Images) {
	k, ok := images.(HotKeeper)
	if !ok {
		return
	}
	if f, err := k.HotSet(); err == nil {
		defer f.Close()
		io.Copy(io.Discard, io.NewSectionReader(f, 0, f.Size())) // what cannot be read now cannot be read then
	}
}

// KeepHot packs the hot set of the profile that was recorded or replayed, unless the images have one. It is to be
// called after Close, when the profile has been stored, and gives up when ctx ends. It returns how many bytes it wrote,
// 0 when there was nothing to do.
func (f *Feed) KeepHot(ctx context.Context) (wrote int64, err error) {
	k, ok := f.opts.Images.(HotKeeper)
	p := f.opts.Profile
	if f.recorder != nil {
		p = f.recorder.Profile()
	}
	if !ok || p == nil || f.packed != nil {
		return 0, nil
	}
	files, done, err := open(f.opts.Images, f.names)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	sizes := make([]int64, len(files))
	for i, x := range files {
		sizes[i] = x.Size()
	}
	hot := p.Ranges(f.names, sizes)
	var size int64
	for _, r := range hot {
		size += r.Len
	}
	if size == 0 {
		return 0, nil
	}
	err = k.SetHotSet(size, func(w io.Writer) (err error) {
		wrote, err = prefetch.Pack(contextWriter{ctx, w}, files, f.names, hot)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("pack the hot set: %w", err)
	}
	return wrote, nil
}

// contextWriter is a writer that fails when ctx has ended.
type contextWriter struct {
	ctx context.Context
	w   io.Writer
}

func (u contextWriter) Write(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(p)
}
