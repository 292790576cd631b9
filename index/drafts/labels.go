package drafts

import (
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
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
