package criuimg

import (
	"maps"
	"reflect"
	"testing"
	"testing/fstest"

	"google.golang.org/protobuf/proto"
)

func span(start, end uint64) Span { return Span{start * PageSize, end * PageSize} }

// What CRIU treats as inherited is a mapping that begins and ends at the same place in parent and child, private
// and anonymous in both.
func TestInherited(t *testing.T) {
	down, locked := anon(70, 80), anon(90, 92)
	down.Flags = proto.Uint32(*down.Flags | mapGrowsDown)
	locked.Flags = proto.Uint32(*locked.Flags | mapLocked)
	fsys := fstest.MapFS{
		"inventory.img": inventoryImage(t),
		"pstree.img":    image(t, magicPstree, task(7, 0), task(8, 7), task(9, 8), task(10, 7)),
		"mm-7.img":      mmImage(t, anon(16, 20), anon(20, 32), anon(40, 50), anon(70, 80), anon(90, 92)),
		"mm-8.img":      mmImage(t, anon(10, 12), anon(16, 20), anon(20, 30), anon(40, 50), down, locked),
		"mm-9.img":      mmImage(t, anon(16, 20)),
		"mm-10.img":     mmImageOf(t, 2, anon(16, 20)), // of another program
	}
	for _, pid := range []string{"7", "8", "9", "10"} {
		fsys["pagemap-"+pid+".img"] = pagemapImage(t, 3)
	}
	c, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	want := []Inheritable{{0, 1, 16 * PageSize, 20 * PageSize}, {0, 1, 40 * PageSize, 50 * PageSize},
		{1, 2, 16 * PageSize, 20 * PageSize}}
	if got := c.Inherited(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// CRIU is told to read some pages by itself; what it and others read lies where it lay.
func TestInheritPagemap(t *testing.T) {
	fsys := fstest.MapFS{
		"inventory.img": inventoryImage(t),
		"pstree.img":    image(t, magicPstree, task(7, 0)),
		"mm-7.img":      mmImage(t, anon(16, 32), anon(64, 80)),
		"pagemap-7.img": pagemapImage(t, 3, pe(10, 2, pePresent), pe(16, 16, pePresent|peLazy), pe(50, 1, pePresent),
			pe(64, 4, pePresent|peLazy), pe(70, 2, pePresent|peLazy)),
	}
	const own = "pages-3.img"
	for _, tc := range []struct {
		spans []Span
		lazy  []Range
		eager []Piece
	}{
		{nil,
			[]Range{pageRange(16, 32, own, 2), pageRange(64, 68, own, 19), pageRange(70, 72, own, 23)},
			[]Piece{{own, 0, 2 * PageSize}, {own, 18 * PageSize, PageSize}}},
		{[]Span{span(16, 18), span(20, 21), span(30, 66), span(71, 90)},
			[]Range{pageRange(18, 20, own, 4), pageRange(21, 30, own, 7), pageRange(66, 68, own, 21),
				pageRange(70, 71, own, 23)},
			[]Piece{{own, 0, 4 * PageSize}, {own, 6 * PageSize, PageSize}, {own, 16 * PageSize, 5 * PageSize},
				{own, 24 * PageSize, PageSize}}},
		{[]Span{span(0, 100)}, nil, []Piece{{own, 0, 25 * PageSize}}},
	} {
		c, err := Load(fsys)
		if err != nil {
			t.Fatal(err)
		}
		c.Tasks[0].DropRanges(tc.spans)
		if got := c.Tasks[0].Ranges; !reflect.DeepEqual(got, tc.lazy) {
			t.Errorf("%v: left %v, want %v", tc.spans, got, tc.lazy)
		}
		b, err := InheritPagemap(fsys, 7, tc.spans)
		if err != nil {
			t.Fatal(err)
		}
		shown := maps.Clone(fsys)
		shown["pagemap-7.img"] = &fstest.MapFile{Data: b}
		if got, err := Eager(shown, 1); err != nil || !reflect.DeepEqual(got, tc.eager) {
			t.Errorf("%v: eager %v, %v; want %v", tc.spans, got, err, tc.eager)
		}
		// What is lazy in it is what was left.
		if c, err = Load(shown); err != nil || !reflect.DeepEqual(c.Tasks[0].Ranges, tc.lazy) {
			t.Errorf("%v: lazy are %v, %v", tc.spans, c.Tasks[0].Ranges, err)
		}
	}
}
