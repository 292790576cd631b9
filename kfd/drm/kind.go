package drm

import "fmt"

// Kind is how bytes are moved.
type Kind int

// Kinds of engines.
const (
	Auto    Kind = iota // SDMA if it works here, else Mapping
	SDMA                // the GPU's copy engines
	Mapping             // the CPU, through the BAR
)

var kindNames = [...]string{Auto: "auto", SDMA: "sdma", Mapping: "mapping"}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("engine %d", int(k))
	}
	return kindNames[k]
}

// MarshalText makes a kind readable in JSON.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (k *Kind) UnmarshalText(b []byte) error {
	for i, n := range kindNames {
		if n == string(b) {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("no engine %q", b)
}
