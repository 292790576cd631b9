package cuda

import (
	"encoding/hex"
	"fmt"
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
			return nil, fmt.Errorf("cuda: device map: %q lacks '='; it is OLD-UUID=NEW-UUID, several of them with commas between", part)
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
