package topology

import (
	"fmt"

	"github.com/dustin/go-humanize"
)

// rule says how a property of a host's GPU must relate to the checkpoint's.
type rule struct {
	p       Property
	atLeast bool    // may be larger on the host
	by      *Switch // what waives it, nil if nothing does
}

var rules = func() []rule {
	var out []rule
	for _, p := range []Property{
		VendorID, DeviceID, SIMDCount, MemBanksCount, IOLinksCount, MaxWavesPerSIMD, LDSSizeInKB, WaveFrontSize,
		ArrayCount,
		SIMDArraysPerEngine, CUPerSIMDArray, SIMDPerCU, MaxSlotsScratchCU, NumSDMAEngines, NumSDMAXGMIEngines,
		NumSDMAQueuesPerEngine, NumCPQueues, VRAMPublic,
	} {
		out = append(out, rule{p: p})
	}
	waivable := func(p Property, atLeast bool, s Switch) { out = append(out, rule{p, atLeast, &s}) }
	waivable(Capability, false, Caps)
	waivable(VRAMSize, true, VRAM)
	waivable(NumGWS, true, GWS)
	waivable(CachesCount, true, Caches)
	waivable(FWVersion, true, FWVer)
	waivable(SDMAFWVersion, true, SDMAFWVer)
	return out
}()

// Mismatch is a property that keeps a GPU of the checkpoint from a GPU of the
// host.
type Mismatch struct {
	Property Property `json:"property"`
	Need     uint64   `json:"checkpoint"`
	Have     uint64   `json:"host"`
	// AtLeast: the host's value may be larger; otherwise both must be equal.
	AtLeast bool `json:"at_least"`
	// Switch waives the check; nil if nothing does.
	Switch *Switch `json:"switch,omitempty"`
}

// String tells the mismatch to a user.
func (m Mismatch) String() string {
	text := fmt.Sprintf("%s is %s in the checkpoint and %s here, must be ", m.Property, m.format(m.Need),
		m.format(m.Have))
	if m.AtLeast {
		text += "at least that"
	} else {
		text += "equal"
	}
	if m.Switch != nil {
		text += fmt.Sprintf(" (%s=0 waives this)", *m.Switch)
	}
	return text
}

func (m Mismatch) format(v uint64) string {
	switch m.Property {
	case VRAMSize:
		return fmt.Sprintf("%s (%d bytes)", humanize.IBytes(v), v)
	case VendorID, DeviceID, Capability:
		return fmt.Sprintf("%#x", v)
	}
	return fmt.Sprint(v)
}

// Mismatches compares a GPU of the checkpoint with one of the host and returns
// what keeps them apart under the checks that are not waived. It does not look
// at links; [Map] does.
func Mismatches(src, dst *Node, w Waived) []Mismatch {
	var out []Mismatch
	for _, r := range rules {
		need, have := src.Props[r.p], dst.Props[r.p]
		if need == have || r.atLeast && need < have || r.by != nil && w.Has(*r.by) {
			continue
		}
		out = append(out, Mismatch{Property: r.p, Need: need, Have: have, AtLeast: r.atLeast, Switch: r.by})
	}
	return out
}

// replaces reports whether a link of the host can take the place of one of the
// checkpoint, whose peers are both CPUs.
func replaces(dst LinkType, dstBoth bool, src LinkType, srcBoth bool) bool {
	return !(src == XGMI && dst == PCIe) && (dstBoth || !srcBoth)
}
