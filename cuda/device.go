package cuda

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// UUID names a GPU.
type UUID [16]byte

// ParseUUID reads GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx; the prefix may be left out.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	digits := strings.TrimPrefix(s, "GPU-")
	groups := strings.Split(digits, "-")
	if len(groups) == 5 && len(groups[0]) == 8 && len(groups[1]) == 4 && len(groups[2]) == 4 && len(groups[3]) == 4 &&
		len(groups[4]) == 12 {
		if b, err := hex.DecodeString(strings.Join(groups, "")); err == nil {
			copy(u[:], b)
			return u, nil
		}
	}
	return u, fmt.Errorf("cuda: %q is no GPU UUID; one looks like GPU-8f3a1c52-0b6e-4d57-9a41-2c7d5e901b3f", s)
}

func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// MarshalText writes the UUID as String does.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (u *UUID) UnmarshalText(text []byte) (err error) {
	*u, err = ParseUUID(string(text))
	return err
}

// Device is one GPU as the driver shows it.
type Device struct {
	UUID   UUID   `json:"uuid"`
	Name   string `json:"name"`
	Memory uint64 `json:"memory"` // bytes
}

// Pair says that what was on the GPU From is to be restored on the GPU To.
type Pair struct {
	From UUID `json:"from"`
	To   UUID `json:"to"`
}

// ParsePairs reads a device map: OLD=NEW,OLD=NEW of GPU UUIDs. Neither side may name a GPU twice.
func ParsePairs(s string) ([]Pair, error) {
	if s == "" {
		return nil, nil
	}
	var pairs []Pair
	from, to := map[UUID]bool{}, map[UUID]bool{}
	for _, part := range strings.Split(s, ",") {
		old, repl, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return nil, fmt.Errorf(
				"cuda: device map: %q lacks '='; it is OLD-UUID=NEW-UUID, several of them with commas between", part)
		}
		var p Pair
		var err error
		if p.From, err = ParseUUID(old); err != nil {
			return nil, err
		}
		if p.To, err = ParseUUID(repl); err != nil {
			return nil, err
		}
		if from[p.From] || to[p.To] {
			return nil, fmt.Errorf("cuda: device map: %q names a GPU for the second time", part)
		}
		from[p.From], to[p.To] = true, true
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// StandIns gives the pairs for a restore of processes that had the GPUs had before them, and used those of them, where
// the driver shows other GPUs now: each that was used and is not shown moves to one of the same name. None are needed,
// and none given, where all that were used are shown; nor where there are too few.
//
// The driver wants every GPU named that the process had before it, each other one once. So those that were not used get
// what is left, even where it is not shown: nothing is put there.
func StandIns(had []Device, used []UUID, shown []Device) []Pair {
	is := func(list []Device, u UUID) bool {
		return slices.ContainsFunc(list, func(d Device) bool { return d.UUID == u })
	}
	if !slices.ContainsFunc(used, func(u UUID) bool { return !is(shown, u) }) {
		return nil
	}
	to, taken := map[UUID]UUID{}, map[UUID]bool{}
	give := func(from UUID, list []Device, fits func(Device) bool) bool {
		for _, d := range list {
			if !taken[d.UUID] && fits(d) {
				to[from], taken[d.UUID] = d.UUID, true
				return true
			}
		}
		return false
	}
	anyOf := func(Device) bool { return true }
	var moved, rest []Device
	for _, d := range had {
		same := func(x Device) bool { return x.UUID == d.UUID }
		switch {
		case !slices.Contains(used, d.UUID):
			rest = append(rest, d)
		case !give(d.UUID, shown, same):
			moved = append(moved, d)
		}
	}
	for _, d := range moved {
		if !give(d.UUID, shown, func(x Device) bool { return x.Name == d.Name }) {
			return nil
		}
	}
	for _, d := range rest {
		_ = give(d.UUID, shown, func(x Device) bool { return x.UUID == d.UUID }) || give(d.UUID, shown, anyOf) ||
			give(d.UUID, had, anyOf)
	}
	var pairs []Pair
	for _, d := range had {
		if t, ok := to[d.UUID]; ok {
			pairs = append(pairs, Pair{d.UUID, t})
		}
	}
	return pairs
}
