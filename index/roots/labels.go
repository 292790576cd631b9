package roots

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode"

	"github.com/gpucr/gpucr-fs/index/fault"
	"github.com/gpucr/gpucr-fs/index/manifest"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
)

// ValidLabel refuses what cannot be a label: a key other than up to 63 small letters, digits, dots, dashes,
// underscores and slashes, and a value that is longer than 1024 bytes or holds what cannot be printed on one line.
func ValidLabel(key, value string) error {
	why := ""
	switch {
	case !manifest.ValidLabelKey(key):
		why = fmt.Sprintf("%.80q cannot be the key of a label", key)
	case !manifest.ValidLabelValue(value),
		strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsGraphic(r) }):
		why = fmt.Sprintf("the value of %s is longer than %d bytes or cannot be printed on one line", key,
			manifest.MaxLabelValue)
	default:
		return nil
	}
	return &fault.Error{Class: fault.Invalid, Op: "label", Err: errors.New(why),
		Hint: "labels are written key=value, the key in small letters"}
}

// AddLabels adds valid labels to pb where it says nothing else, up to the number that it may have.
func AddLabels(pb *manifestpb.Checkpoint, found map[string]string) {
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

// ValidLabels is ValidLabel for all labels of a checkpoint, and bounds their number.
func ValidLabels(labels map[string]string) error {
	if len(labels) > manifest.MaxLabels {
		return &fault.Error{Class: fault.Invalid, Op: "label",
			Err: fmt.Errorf("%d labels, %d are allowed", len(labels), manifest.MaxLabels)}
	}
	for k, v := range labels {
		if err := ValidLabel(k, v); err != nil {
			return err
		}
	}
	return nil
}

// Label sets labels of a checkpoint, sealed or being written; an empty value takes one away.
func (s *Set) Label(name string, labels map[string]string) error {
	if err := s.chunks.MayWrite("label"); err != nil {
		return err
	}
	if err := ValidLabels(labels); err != nil {
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
		return ValidLabels(all)
	}
	s.mu.Lock()
	d := s.drafts[name]
	s.mu.Unlock()
	if d != nil {
		done, err := d.Relabel(change)
		if done || err != nil {
			return err
		}
	}
	return s.update(func() (map[*Root]*manifestpb.Checkpoint, error) {
		r, err := s.sealed("label", name)
		if err != nil {
			return nil, err
		}
		pb := clonePB(r.pb)
		return map[*Root]*manifestpb.Checkpoint{r: pb}, change(pb)
	})
}
