// Package selection says which checkpoints of a store are listed, and in which order.
package selection

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/index"
)

// Select says which checkpoints are listed and in which order.
type Select struct {
	Tag     string       `json:"tag,omitempty"`    // only the one of this tag
	Labels  label.Filter `json:"labels,omitempty"` // only those with all of these
	Sort    string       `json:"sort,omitempty"`   // one of SortKeys; empty: created
	Reverse bool         `json:"reverse,omitempty"`
	Latest  int          `json:"latest,omitempty"` // only so many, sealed last; 0: all
}

// sortKeys are the orders of a list, each ascending. Equal ones stay in the order of their creation.
var sortKeys = map[string]func(a, b index.Info) int{
	"created": func(a, b index.Info) int { return a.Created.Compare(b.Created) },
	"sealed":  func(a, b index.Info) int { return a.SealedAt.Compare(b.SealedAt) },
	"name":    func(a, b index.Info) int { return strings.Compare(a.Name, b.Name) },
	"files":   func(a, b index.Info) int { return cmp.Compare(a.Files, b.Files) },
	"logical": func(a, b index.Info) int { return cmp.Compare(a.Logical, b.Logical) },
	"unique":  func(a, b index.Info) int { return cmp.Compare(a.Unique, b.Unique) },
	"shared":  func(a, b index.Info) int { return cmp.Compare(a.Shared, b.Shared) },
	"stored":  func(a, b index.Info) int { return cmp.Compare(a.Stored, b.Stored) },
}

// SortKeys gives the names of the orders.
func SortKeys() []string { return slices.Sorted(maps.Keys(sortKeys)) }

// Counted says whether an order needs byte counts that Names does not have.
func (q Select) Counted() bool { return q.Sort == "unique" || q.Sort == "shared" || q.Sort == "stored" }

// Apply gives the checkpoints of all, oldest first, that q selects.
func (q Select) Apply(all []index.Info) ([]index.Info, error) {
	if q.Sort == "" {
		q.Sort = "created"
	}
	by := sortKeys[q.Sort]
	if by == nil || q.Latest < 0 {
		return nil, &index.Error{Class: index.Invalid, Op: "ls",
			Err:  fmt.Errorf("cannot sort by %.40q and show the latest %d", q.Sort, q.Latest),
			Hint: "sort by " + strings.Join(SortKeys(), ", ")}
	}
	var out []index.Info
	for _, i := range all {
		if (q.Tag == "" || slices.Contains(i.Tags, q.Tag)) && q.Labels.Matches(i.Labels) {
			out = append(out, i)
		}
	}
	if q.Latest > 0 {
		out = slices.DeleteFunc(out, func(i index.Info) bool { return i.State != index.Sealed })
		slices.SortStableFunc(out, sortKeys["sealed"])
		out = out[max(0, len(out)-q.Latest):]
	}
	slices.SortStableFunc(out, by)
	if q.Reverse {
		slices.Reverse(out)
	}
	return out, nil
}
