package restore

import (
	"bytes"
	"fmt"
	"html"
	"slices"
)

// Geometry of the picture, in pixels.
const (
	svgWidth   = 900
	svgLeft    = 200 // of the time axis
	svgRight   = 30
	svgRow     = 26
	svgTop     = 56
	svgBarHigh = 14
)

// span is a bar of the picture.
type span struct {
	name     string
	from, to string // marks
	colour   string
}

var spans = []span{
	{"prepare", "", MarkPrepared, "#8da0cb"},
	{"criu", "criu asked", MarkResume, "#66c2a5"},
	{"runs, filling", MarkResume, MarkResident, "#fc8d62"},
	{"hot set", MarkResume, MarkHotDone, "#e78ac3"},
	{"gpu", MarkResume, MarkGPUReady, "#a6d854"},
}

// SVG draws the timeline: a bar for each stretch, a line for each moment, and a bar of the bytes by source.
func (t *Timeline) SVG() []byte {
	var total float64 = 1
	for _, m := range t.Marks {
		total = max(total, m.Ms)
	}
	x := func(ms float64) float64 { return svgLeft + ms/total*(svgWidth-svgLeft-svgRight) }
	var rows []span
	for _, s := range spans {
		if _, ok := t.ms(s.to); ok {
			rows = append(rows, s)
		}
	}
	moments := slices.DeleteFunc(slices.Clone(t.Marks), func(m Mark) bool { return m.Name == MarkPrepared })
	axis := svgTop + svgRow*len(rows)
	labels := axis + 28
	bytesAt := labels + 16*len(moments) + 26
	height := bytesAt + 70

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="12">`+"\n", svgWidth, height, svgWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", svgWidth, height)
	kind := "first restore, no profile"
	if t.Profile {
		kind = "with a profile"
	}
	fmt.Fprintf(&b, `<text x="16" y="24" font-size="15">restore of %s: %s, %d faults</text>`+"\n",
		html.EscapeString(t.Checkpoint), kind, t.Faults)
	for i, s := range rows {
		from, _ := t.ms(s.from)
		to, _ := t.ms(s.to)
		y := svgTop + svgRow*i
		fmt.Fprintf(&b, `<text x="16" y="%d">%s</text><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
			y+12, s.name, x(from), y, max(1, x(to)-x(from)), svgBarHigh, s.colour)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" font-size="10" fill="#333">%.0f ms</text>`+"\n",
			min(x(from)+3, svgWidth-60), y+11, to-from)
	}
	fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="#333"/>`+"\n", svgLeft, axis, svgWidth-svgRight,
		axis)
	for i := range 5 {
		ms := total * float64(i) / 4
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#333" font-size="10">%.0f ms</text>`+"\n",
			x(ms), axis+14, ms)
	}
	for i, m := range moments {
		y := labels + 16*i
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#999" stroke-dasharray="2,3"/>`+"\n",
			x(m.Ms), svgTop-8, x(m.Ms), y)
		fmt.Fprintf(&b,
			`<circle cx="%.1f" cy="%d" r="3" fill="#333"/><text x="16" y="%d" fill="#333">%s, %.1f ms</text>`+"\n",
			x(m.Ms), y, y+4, html.EscapeString(m.Name), m.Ms)
	}
	t.drawBytes(&b, bytesAt)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// ms gives when a mark was; the empty name is the start.
func (t *Timeline) ms(name string) (float64, bool) {
	if name == "" {
		return 0, true
	}
	for _, m := range t.Marks {
		if m.Name == name {
			return m.Ms, true
		}
	}
	return 0, false
}

func (t *Timeline) drawBytes(b *bytes.Buffer, y int) {
	parts := []struct {
		name   string
		n      int64
		colour string
	}{
		{"images", t.Bytes.Images, "#8da0cb"}, {"demand", t.Bytes.Demand, "#fc8d62"},
		{"hot set", t.Bytes.Hot, "#e78ac3"}, {"sweep", t.Bytes.Sweep, "#66c2a5"},
	}
	var sum int64
	for _, p := range parts {
		sum += p.n
	}
	fmt.Fprintf(b, `<text x="16" y="%d">bytes by source</text>`+"\n", y+12)
	at, label := float64(svgLeft), float64(svgLeft)
	for _, p := range parts {
		w := float64(p.n) / float64(max(sum, 1)) * (svgWidth - svgLeft - svgRight)
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", at, y, w, svgBarHigh,
			p.colour)
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="10" height="10" fill="%s"/>`, label, y+26, p.colour)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" font-size="10">%s %.1f MiB</text>`+"\n", label+14, y+35, p.name,
			float64(p.n)/(1<<20))
		at, label = at+w, label+165
	}
}
