package topology

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Switch names a check that the environment of a restore can waive.
type Switch int

// The checks, each by the variable of CRIU's amdgpu plugin that turns it off.
const (
	FWVer     Switch = iota // KFD_FW_VER_CHECK: firmware at least as new
	SDMAFWVer               // KFD_SDMA_FW_VER_CHECK: SDMA firmware at least as new
	Caches                  // KFD_CACHES_COUNT_CHECK: at least as many caches
	GWS                     // KFD_NUM_GWS_CHECK: at least as many GWS
	VRAM                    // KFD_VRAM_SIZE_CHECK: at least as much VRAM
	NUMA                    // KFD_NUMA_CHECK: GPUs keep their CPUs
	Caps                    // KFD_CAPABILITY_CHECK: the same capability
	numSwitches
)

var switchNames = [numSwitches]string{
	FWVer:     "KFD_FW_VER_CHECK",
	SDMAFWVer: "KFD_SDMA_FW_VER_CHECK",
	Caches:    "KFD_CACHES_COUNT_CHECK",
	GWS:       "KFD_NUM_GWS_CHECK",
	VRAM:      "KFD_VRAM_SIZE_CHECK",
	NUMA:      "KFD_NUMA_CHECK",
	Caps:      "KFD_CAPABILITY_CHECK",
}

// String returns the name of the variable.
func (s Switch) String() string { return switchNames[s] }

// MarshalText makes a switch readable in JSON.
func (s Switch) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Switches returns all switches.
func Switches() []Switch {
	out := make([]Switch, numSwitches)
	for i := range out {
		out[i] = Switch(i)
	}
	return out
}

// Waived is a set of checks that are turned off. The zero value checks all, as
// the plugin does by default.
type Waived uint8

// Waive returns the set of the given checks.
func Waive(switches ...Switch) Waived {
	var w Waived
	for _, s := range switches {
		w |= 1 << s
	}
	return w
}

// Has reports whether the check is turned off.
func (w Waived) Has(s Switch) bool { return w&(1<<s) != 0 }

// List returns the checks that are turned off.
func (w Waived) List() []Switch {
	var out []Switch
	for _, s := range Switches() {
		if w.Has(s) {
			out = append(out, s)
		}
	}
	return out
}

// MaxBufferVar is the variable that bounds the staging buffer of a GPU.
const MaxBufferVar = "KFD_MAX_BUFFER_SIZE"

// Settings is what the plugin takes from its environment.
type Settings struct {
	Waived        Waived
	MaxBufferSize uint64 // bytes, 0 for no bound
}

// ParseSettings reads the plugin's variables through lookup, which is
// os.LookupEnv or like it. A switch is 0 or NO, 1 or YES, in any case; a size
// is a number, decimal, 0x hexadecimal or 0 octal, with K or k, M or G behind
// it. As in the plugin, a value that is neither is ignored; here the warnings
// say so, one line each.
func ParseSettings(lookup func(string) (string, bool)) (Settings, []string) {
	var s Settings
	var warnings []string
	for _, sw := range Switches() {
		v, ok := lookup(sw.String())
		switch {
		case !ok || v == "1" || strings.EqualFold(v, "yes"):
		case v == "0" || strings.EqualFold(v, "no"):
			s.Waived |= Waive(sw)
		default:
			warnings = append(warnings, fmt.Sprintf("ignoring %s=%s: expected 0, NO, 1 or YES", sw, v))
		}
	}
	if v, ok := lookup(MaxBufferVar); ok {
		n, err := parseSize(v)
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("ignoring %s=%s: %v", MaxBufferVar, v, err))
		}
		s.MaxBufferSize = n
	}
	return s, warnings
}

// parseSize parses a number as strtoul does in base 0, with an optional suffix.
func parseSize(v string) (uint64, error) {
	digits, shift := v, 0
	if v != "" {
		digits = v[:len(v)-1]
		switch v[len(v)-1] {
		case 'k', 'K':
			shift = 10
		case 'M':
			shift = 20
		case 'G':
			shift = 30
		default:
			digits = v
		}
	}
	// strtoul knows no 0b, 0o or underscores, and ParseUint no leading zero
	// in base 8 spelled out.
	base := 10
	if hex, ok := strings.CutPrefix(strings.ToLower(digits), "0x"); ok {
		digits, base = hex, 16
	} else if len(digits) > 1 && digits[0] == '0' {
		digits, base = digits[1:], 8
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return 0, fmt.Errorf("expected a number with K, M or G behind it")
	}
	if n > math.MaxUint64>>shift {
		return 0, fmt.Errorf("exceeds 64 bits")
	}
	return n << shift, nil
}
