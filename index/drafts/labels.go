package drafts

import (
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/index/roots"
)

// Relabel changes the record of a draft; done is false when it has ended meanwhile.
func (d *Draft) Relabel(change func(*manifestpb.Checkpoint) error) (done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false, nil
	}
	err = d.s.roots.Change(d.r, change)
	return err == nil, err
}

// label adds what Options.Labels finds in the files of a draft to pb, where nobody has said otherwise. Call with
// d.mu held.
func (d *Draft) label(pb *manifestpb.Checkpoint) {
	if d.s.o.Labels == nil {
		return
	}
	found := d.s.o.Labels(d.view())
	for k, v := range found {
		if _, said := pb.Labels[k]; said || roots.ValidLabel(k, v) != nil || len(pb.Labels) >= manifest.MaxLabels {
			continue
		}
		if pb.Labels == nil {
			pb.Labels = map[string]string{}
		}
		pb.Labels[k] = v
	}
}
