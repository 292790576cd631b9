package index

import (
	"errors"
	"fmt"
	"maps"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// ValidLabel refuses what cannot be a label: a key other than up to 63 small letters, digits, dots, dashes, underscores and slashes, and a value that is longer
// than 1024 bytes or holds what cannot be printed on one line.
func ValidLabel(key, value string) error {
	why := ""
	switch {
	case !manifest.ValidLabelKey(key):
		why = fmt.Sprintf("%.80q cannot be the key of a label", key)
	case !manifest.ValidLabelValue(value):
		why = fmt.Sprintf("the value of %s is longer than %d bytes or cannot be printed on one line", key, manifest.MaxLabelValue)
	default:
		return nil
	}
	return &fault.Error{Class: fault.Invalid, Op: "label", Err: errors.New(why), Hint: "labels are written key=value, the key in small letters"}
}

func validLabels(labels map[string]string) error {
	if len(labels) > manifest.MaxLabels {
		return &fault.Error{Class: fault.Invalid, Op: "label", Err: fmt.Errorf("%d labels, %d are allowed", len(labels), manifest.MaxLabels)}
	}
	for k, v := range labels {
		if err := ValidLabel(k, v); err != nil {
			return err
		}
	}
	return nil
}

// Label sets labels of a checkpoint, sealed or being written; an empty value takes one away.
func (s *Store) Label(name string, labels map[string]string) error {
	if err := s.chunks.MayWrite("label"); err != nil {
		return err
	}
	if err := validLabels(labels); err != nil {
		return err
	}
	change := func(pb *manifestpb.Checkpoint) error {
		all := maps.Clone(pb.Labels)
		if all == nil {
			all = map[string]string{}
		}
		for k, v := range labels {
			if v == "" {
				delete(all, k)
			} else {
				all[k] = v
			}
		}
		pb.Labels = all
		return validLabels(all)
	}
	s.mu.Lock()
	d := s.drafts[name]
	s.mu.Unlock()
	if d != nil {
		done, err := d.relabel(change)
		if done || err != nil {
			return err
		}
	}
	return s.update(func() (map[*root]*manifestpb.Checkpoint, error) {
		r, err := s.sealed("label", name)
		if err != nil {
			return nil, err
		}
		pb := clonePB(r.pb)
		return map[*root]*manifestpb.Checkpoint{r: pb}, change(pb)
	})
}

// relabel changes the labels of a draft; done is false when it has ended meanwhile.
func (d *Draft) relabel(change func(*manifestpb.Checkpoint) error) (done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return false, nil
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	pb := clonePB(d.r.pb)
	if err := change(pb); err != nil {
		return false, err
	}
	d.r.pb = pb
	return true, nil
}

// label adds what Options.Labels finds in the files of a draft to pb, where nobody has said otherwise. Call with d.mu held.
func (d *Draft) label(pb *manifestpb.Checkpoint) {
	if d.s.o.Labels == nil {
		return
	}
	found := d.s.o.Labels(draftView{d})
	for k, v := range found {
		if _, said := pb.Labels[k]; said || ValidLabel(k, v) != nil || len(pb.Labels) >= manifest.MaxLabels {
			continue
		}
		if pb.Labels == nil {
			pb.Labels = map[string]string{}
		}
		pb.Labels[k] = v
	}
}
