// Package retention says which checkpoints a policy keeps.
package retention

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/index"
)

// Policy says which sealed checkpoints to keep: those that any of its rules wants.
type Policy struct {
	Labels label.Filter `json:"labels,omitempty"` // no rule: checkpoints without all of these are none of its business

	Last   int           `json:"last,omitempty"`      // so many, sealed last
	Within time.Duration `json:"within_ns,omitempty"` // sealed so long ago at most, counted from the one sealed last
	Tags   []string      `json:"tags,omitempty"`      // bearing one of these

	// The newest of each of so many hours, days, ISO weeks and months in which something was sealed, by the daemon's
	// local time. Where there are fewer of them, the oldest checkpoint as well: history is not cut while a rule has
	// places left.
	Hourly  int `json:"hourly,omitempty"`
	Daily   int `json:"daily,omitempty"`
	Weekly  int `json:"weekly,omitempty"`
	Monthly int `json:"monthly,omitempty"`
}

// Empty says whether it has no rule.
func (p *Policy) Empty() bool {
	return p == nil || p.Last == 0 && p.Within == 0 && len(p.Tags) == 0 && len(p.periods()) == 0
}

// period keeps the newest checkpoint of each of the last count stretches of time; of gives the name of the one that a
// time falls into.
type period struct {
	name  string
	count int
	of    func(time.Time) string
}

// periods gives the rules of that kind that are in use. Negative counts are among them, to be refused.
func (p *Policy) periods() []period {
	layout := func(l string) func(time.Time) string { return func(t time.Time) string { return t.Format(l) } }
	all := []period{
		{"hourly", p.Hourly, layout("2006-01-02 15 -0700")}, // the hour that a clock change repeats is two hours
		{"daily", p.Daily, layout("2006-01-02")},
		{"weekly", p.Weekly, func(t time.Time) string {
			year, week := t.ISOWeek()
			return fmt.Sprintf("%d-W%02d", year, week)
		}},
		{"monthly", p.Monthly, layout("2006-01")},
	}
	return slices.DeleteFunc(all, func(r period) bool { return r.count == 0 })
}

// Kept is a checkpoint that a policy spares.
type Kept struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

func invalid(hint, format string, a ...any) error {
	return &index.Error{Class: index.Invalid, Op: "rm", Hint: hint, Err: fmt.Errorf(format, a...)}
}

// Apply splits the sealed checkpoints into those to remove and those to keep, as of now. One that a restore brings
// memory from is kept. What a kept one or a writing one needs as its parent is kept, too. One that was sealed after now
// is kept and not counted: the clock was wrong then, or is now, and no rule can tell what is newer than what.
func (p *Policy) Apply(all []index.Info, now time.Time) (remove []index.Info, kept []Kept, err error) {
	if p.Last < 0 || p.Within < 0 || slices.ContainsFunc(p.periods(), func(r period) bool { return r.count < 0 }) {
		return nil, nil, invalid("", "a rule to keep checkpoints must not be negative")
	}
	sealed := make([]index.Info, 0, len(all))
	for _, c := range all {
		if c.State == index.Sealed && p.Labels.Matches(c.Labels) {
			sealed = append(sealed, c)
		}
	}
	remove, kept = []index.Info{}, []Kept{}
	if len(sealed) == 0 {
		return remove, kept, nil
	}
	slices.SortStableFunc(sealed, func(a, b index.Info) int { return a.SealedAt.Compare(b.SealedAt) })
	past := sealed
	for len(past) > 0 && past[len(past)-1].SealedAt.After(now) {
		past = past[:len(past)-1]
	}
	reason := p.reasons(past)
	if len(past) > 0 && len(reason) == 0 {
		return nil, nil, invalid("name the checkpoints to remove them all", "the rules keep nothing")
	}
	for _, c := range sealed[len(past):] {
		reason[c.Name] = "sealed in the future, by this machine's clock"
	}
	for _, c := range sealed {
		if _, ok := reason[c.Name]; !ok && c.Restoring {
			reason[c.Name] = index.WhyKept
		}
	}
	p.spareParents(all, reason)
	for _, c := range sealed {
		if why, ok := reason[c.Name]; ok {
			kept = append(kept, Kept{c.Name, why})
		} else {
			remove = append(remove, c)
		}
	}
	return remove, kept, nil
}

// reasons gives what the rules themselves keep; sealed is ordered by time.
func (p *Policy) reasons(sealed []index.Info) map[string]string {
	reason := map[string]string{}
	if len(sealed) == 0 {
		return reason
	}
	newest := sealed[len(sealed)-1].SealedAt
	for i, c := range sealed {
		switch {
		case i >= len(sealed)-p.Last:
			reason[c.Name] = fmt.Sprintf("one of the last %d", p.Last)
		case p.Within > 0 && newest.Sub(c.SealedAt) <= p.Within:
			reason[c.Name] = "within " + p.Within.String()
		default:
			for _, t := range c.Tags {
				if slices.Contains(p.Tags, t) {
					reason[c.Name] = "tag " + t
				}
			}
		}
	}
	for _, r := range p.periods() {
		last := ""
		for i := len(sealed) - 1; i >= 0 && r.count > 0; i-- {
			at := r.of(sealed[i].SealedAt.Local())
			if at == last {
				continue
			}
			last = at
			r.count--
			if _, ok := reason[sealed[i].Name]; !ok {
				reason[sealed[i].Name] = r.name + " " + at
			}
		}
		if _, ok := reason[sealed[0].Name]; !ok && r.count > 0 {
			reason[sealed[0].Name] = "oldest " + r.name
		}
	}
	return reason
}

// spareParents adds the parents of what stays, and theirs.
func (p *Policy) spareParents(all []index.Info, reason map[string]string) {
	parent := map[string]string{}
	var stays []string
	for _, c := range all {
		parent[c.Name] = c.Parent
		if _, ok := reason[c.Name]; ok || c.State == index.Writing || !p.Labels.Matches(c.Labels) {
			stays = append(stays, c.Name)
		}
	}
	for _, name := range stays {
		for up := parent[name]; up != ""; name, up = up, parent[up] {
			if _, ok := reason[up]; ok {
				break
			}
			reason[up] = "parent of " + name
		}
	}
}

// ParseWithin reads a duration like 7d12h: whole numbers of w, d, h, m (minutes) and s, in any order.
func ParseWithin(s string) (time.Duration, error) {
	const day = 24 * time.Hour
	units := map[byte]time.Duration{'w': 7 * day, 'd': day, 'h': time.Hour, 'm': time.Minute, 's': time.Second}
	var sum time.Duration
	digits := 0
	var n int64
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			if digits++; digits > 9 {
				return 0, errors.New("the number is too large")
			}
			n = n*10 + int64(c-'0')
		case digits > 0 && units[c] != 0:
			if n > int64((1<<63-1-sum)/units[c]) {
				return 0, errors.New("the time is too long")
			}
			sum += time.Duration(n) * units[c]
			n, digits = 0, 0
		default:
			return 0, fmt.Errorf("%q is not a time like 7d12h", s)
		}
	}
	if digits > 0 || s == "" {
		return 0, fmt.Errorf("%q is not a time like 7d12h", s)
	}
	return sum, nil
}
