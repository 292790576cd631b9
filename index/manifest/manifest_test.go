package manifest

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func refs(lens ...uint32) []ChunkRef {
	out := make([]ChunkRef, len(lens))
	for i, n := range lens {
		out[i] = ChunkRef{ID: chunk.Sum([]byte{byte(i)}), Len: n, Stored: (n + 4095) &^ 4095}
	}
	return out
}

// flat joins runs that continue each other: two encodings of one mapping differ in nothing else.
func flat(s *Segment) []Run {
	var out []Run
	for _, r := range s.Runs {
		if k := len(out) - 1; k >= 0 && out[k].Chunk == r.Chunk &&
			(r.Chunk == ZeroRun || int64(out[k].Off)+out[k].Len == int64(r.Off)) {
			out[k].Len += r.Len
			continue
		}
		out = append(out, r)
	}
	return out
}

func TestSegmentRoundTrip(t *testing.T) {
	tests := map[string]struct {
		s    Segment
		runs int // bytes the runs take, when that matters
	}{
		"empty": {s: Segment{Start: 8192, Chunks: refs()}},
		"zeros": {s: Segment{Len: 1 << 40, Chunks: refs(), Runs: []Run{{Len: 1 << 40, Chunk: ZeroRun}}}},
		"written front to back": {s: Segment{Len: 13000, Chunks: refs(4096, 8192, 712), Runs: []Run{
			{Len: 4096}, {Start: 4096, Len: 8192, Chunk: 1}, {Start: 12288, Len: 712, Chunk: 2}}}, runs: 3},
		"zeros within a chunk": {s: Segment{Len: 16384, Chunks: refs(8192), Runs: []Run{
			{Len: 4096}, {Start: 4096, Len: 8192, Chunk: ZeroRun}, {Start: 12288, Len: 4096, Off: 4096}}}, runs: 3 * 3},
		"patched": {s: Segment{Start: 1 << 30, Len: 12288, Chunks: refs(12288, 4096), Runs: []Run{
			{Len: 4096}, {Start: 4096, Len: 4096, Chunk: 1}, {Start: 8192, Len: 4096, Off: 8192}}}},
		"one chunk twice": {s: Segment{Len: 8192, Chunks: refs(4096),
			Runs: []Run{{Len: 4096}, {Start: 4096, Len: 4096}}}},
		"begins within": {s: Segment{Len: 96, Chunks: refs(4096), Runs: []Run{{Len: 96, Off: 4000}}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := EncodeSegment(&tc.s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeSegment(b)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*got, tc.s) {
				t.Errorf("got %+v\nwant %+v", *got, tc.s)
			}
			var pb manifestpb.Segment
			if err := proto.Unmarshal(b, &pb); err != nil {
				t.Fatal(err)
			}
			if tc.runs > 0 && len(pb.Runs) > tc.runs {
				t.Errorf("the runs take %d bytes, more than %d", len(pb.Runs), tc.runs)
			}
			for i, r := range tc.s.Runs {
				if tc.s.Find(r.Start) != i || tc.s.Find(r.Start+r.Len-1) != i {
					t.Errorf("run %d is not found at its ends", i)
				}
			}
		})
	}
}

func run(v ...uint64) []byte {
	var b []byte
	for _, x := range v {
		b = binary.AppendUvarint(b, x)
	}
	return b
}

func TestMalformedSegments(t *testing.T) {
	id := make([]byte, 32)
	tests := map[string]*manifestpb.Segment{
		"runs short of the end": {Len: 10, Runs: run(5<<2 | kindZero)},
		"runs beyond the end":   {Len: 10, Runs: run(11<<2 | kindZero)},
		"no runs":               {Len: 10},
		"empty run":             {Len: 10, Runs: run(kindZero, 10<<2|kindZero)},
		"endless run":           {Len: 10, Runs: run(1<<64 - 4)},
		"unknown kind":          {Len: 10, Runs: run(10<<2 | 3)},
		"varint cut short":      {Len: 10, Runs: []byte{0x80}},
		"place cut short": {Len: 10, Runs: run(10<<2|kindAt, 0), Ids: id, Lens: []uint32{10},
			Stored: []uint32{4096}},
		"data without chunks": {Len: 10, Runs: run(10<<2 | kindNext)},
		"chunk out of range": {Len: 10, Runs: run(10<<2|kindAt, 1<<40, 0), Ids: id, Lens: []uint32{10},
			Stored: []uint32{4096}},
		"offset out of range": {Len: 10, Runs: run(10<<2|kindAt, 0, 11), Ids: id, Lens: []uint32{10},
			Stored: []uint32{4096}},
		"leaves its last chunk": {Len: 11, Runs: run(11<<2 | kindNext), Ids: id, Lens: []uint32{10},
			Stored: []uint32{4096}},
		"empty chunk":             {Ids: id, Lens: []uint32{0}, Stored: []uint32{4096}},
		"enormous chunk":          {Ids: id, Lens: []uint32{16<<20 + 1}, Stored: []uint32{4096}},
		"fewer ids than lengths":  {Ids: id[:31], Lens: []uint32{10}, Stored: []uint32{4096}},
		"fewer slots than chunks": {Ids: id, Lens: []uint32{10}},
		"negative start":          {Start: -1},
		"negative length":         {Len: -1},
		"too many chunks": {Ids: make([]byte, 32*(2*MaxChunks+1)), Lens: make([]uint32, 2*MaxChunks+1),
			Stored: make([]uint32, 2*MaxChunks+1)},
		"too many runs": {Len: 1 << 30, Runs: []byte(strings.Repeat(string(run(1<<2|kindZero)), 2*MaxRuns+2))},
	}
	for name, pb := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := proto.Marshal(pb)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := DecodeSegment(b); !errors.Is(err, errSegment) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := DecodeSegment([]byte{0xff}); !errors.Is(err, errSegment) {
		t.Errorf("no message at all: %v", err)
	}
}

func TestValidPath(t *testing.T) {
	for p, want := range map[string]bool{
		"a": true, "a/b": true, "..a": true, "a..": true, ".hidden": true, "a b": true, "a\n": true, "ä/ö": true,
		"": false, ".": false, "..": false, "/": false, "/a": false, "../a": false, "a/..": false, "a/../b": false,
		"a/": false, "a//b": false, "./a": false,
		"a\x00": false, "\x00": false,
	} {
		if ValidPath(p) != want {
			t.Errorf("%q: want %v", p, want)
		}
	}
}

func TestEntries(t *testing.T) {
	good := []*manifestpb.Entry{
		{Path: "d", Type: manifestpb.Entry_DIRECTORY, Perm: 0o755},
		{Path: "d/f", Size: 3, Inline: []byte("abc"), Perm: 0o600, MtimeNs: -1},
		{Path: "l", Type: manifestpb.Entry_SYMLINK, Target: "d/f", Size: 3},
		{Path: "p", Size: 1 << 40, Zero: 1 << 39, Number: 7, Segments: []int64{0, 1 << 30}},
	}
	b, err := EncodeEntries(good)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeEntries(b)
	if err != nil || !proto.Equal(&manifestpb.Entries{Entries: got}, &manifestpb.Entries{Entries: good}) {
		t.Errorf("got %v, %v", got, err)
	}
	long := strings.Repeat("x", MaxName+1)
	for name, list := range map[string][]*manifestpb.Entry{
		"path":                  {{Path: "../x"}},
		"long name":             {{Path: long}},
		"long path":             {{Path: strings.Repeat("x/", MaxPath/2) + "xx"}},
		"negative size":         {{Path: "f", Size: -1}},
		"enormous size":         {{Path: "f", Size: MaxFileSize + 1, Segments: []int64{0}}},
		"negative zeros":        {{Path: "f", Size: 1, Zero: -1, Segments: []int64{0}}},
		"more zeros":            {{Path: "f", Size: 1, Zero: 2, Segments: []int64{0}}},
		"inline":                {{Path: "f", Size: 2, Inline: []byte("abc")}},
		"a page inline":         {{Path: "f", Size: 4096, Inline: make([]byte, 4096)}},
		"inline and segments":   {{Path: "f", Size: 1, Inline: []byte("a"), Segments: []int64{0}}},
		"no contents":           {{Path: "f", Size: 1}},
		"no beginning":          {{Path: "f", Size: 100, Segments: []int64{50}}},
		"segment order":         {{Path: "f", Size: 100, Segments: []int64{0, 50, 50}}},
		"segment at end":        {{Path: "f", Size: 100, Segments: []int64{0, 100}}},
		"segment at -1":         {{Path: "f", Size: 100, Segments: []int64{-1}}},
		"segment, no size":      {{Path: "f", Segments: []int64{0}}},
		"unknown type":          {{Path: "f", Type: 3}},
		"folder with bytes":     {{Path: "d", Type: manifestpb.Entry_DIRECTORY, Size: 1, Inline: []byte("a")}},
		"folder with segments":  {{Path: "d", Type: manifestpb.Entry_DIRECTORY, Segments: []int64{0}}},
		"file with a target":    {{Path: "f", Target: "a"}},
		"link without a target": {{Path: "l", Type: manifestpb.Entry_SYMLINK}},
		"link of another size":  {{Path: "l", Type: manifestpb.Entry_SYMLINK, Target: "a", Size: 2}},
		"link with a NUL":       {{Path: "l", Type: manifestpb.Entry_SYMLINK, Target: "\x00", Size: 1}},
		"the same path twice":   {{Path: "f"}, {Path: "f"}},
		"paths out of order":    {{Path: "g"}, {Path: "f"}},
	} {
		if _, err := EncodeEntries(list); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: encoded: %v", name, err)
		}
		b, err := proto.Marshal(&manifestpb.Entries{Entries: list})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeEntries(b); !errors.Is(err, errTable) {
			t.Errorf("%s: decoded: %v", name, err)
		}
	}
	if _, err := EncodeEntries(make([]*manifestpb.Entry, MaxPart+1)); !errors.Is(err, ErrLimit) {
		t.Errorf("too many entries: %v", err)
	}
	tiny := []byte(strings.Repeat("\n\x00", MaxPart+1)) // an empty entry takes two bytes
	if _, err := DecodeEntries(tiny); !errors.Is(err, errTable) ||
		testing.AllocsPerRun(1, func() { DecodeEntries(tiny) }) > 20 {
		t.Errorf("%d entries in %d bytes: %v", MaxPart+1, len(tiny), err)
	}
}

func TestTable(t *testing.T) {
	dir, link := manifestpb.Entry_DIRECTORY, manifestpb.Entry_SYMLINK
	for name, tc := range map[string]struct {
		parts [][]*manifestpb.Entry
		ok    bool
	}{
		"a tree": {[][]*manifestpb.Entry{{{Path: "a", Type: dir}, {Path: "a-b"}},
			{{Path: "a/b"}, {Path: "c"}}}, true},
		"no folder":        {[][]*manifestpb.Entry{{{Path: "a/b"}}}, false},
		"a file as folder": {[][]*manifestpb.Entry{{{Path: "a"}, {Path: "a/b"}}}, false},
		"a link as folder": {[][]*manifestpb.Entry{{{Path: "a", Type: link, Target: "/etc", Size: 4},
			{Path: "a/b"}}}, false},
		"order across parts":   {[][]*manifestpb.Entry{{{Path: "b"}}, {{Path: "a"}}}, false},
		"a path in both parts": {[][]*manifestpb.Entry{{{Path: "b"}}, {{Path: "b"}}}, false},
	} {
		var table Table
		var err error
		for _, p := range tc.parts {
			if err == nil {
				err = table.Add(p)
			}
		}
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, errTable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckpoint(t *testing.T) {
	c := &manifestpb.Checkpoint{Id: "00000000000000ff", Name: "a", Sealed: true, Tags: []string{"x"}, Logical: 5}
	b, err := EncodeCheckpoint(c)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeCheckpoint(b); err != nil || !proto.Equal(got, c) || got.Version != Version {
		t.Errorf("got %v, %v", got, err)
	}
	const id = "0123456789abcdef"
	v := uint32(Version)
	for name, tc := range map[string]struct {
		c     *manifestpb.Checkpoint
		later bool
	}{
		"later":          {&manifestpb.Checkpoint{Version: v + 1, Id: id, Name: "a"}, true},
		"no version":     {&manifestpb.Checkpoint{Id: id, Name: "a"}, false},
		"no id":          {&manifestpb.Checkpoint{Version: v, Name: "a"}, false},
		"no name":        {&manifestpb.Checkpoint{Version: v, Id: id}, false},
		"id is a path":   {&manifestpb.Checkpoint{Version: v, Id: "../../../../etc", Name: "a"}, false},
		"short id":       {&manifestpb.Checkpoint{Version: v, Id: id[1:], Name: "a"}, false},
		"upper case id":  {&manifestpb.Checkpoint{Version: v, Id: strings.ToUpper(id), Name: "a"}, false},
		"name is a path": {&manifestpb.Checkpoint{Version: v, Id: id, Name: "a/b"}, false},
		"parent a path":  {&manifestpb.Checkpoint{Version: v, Id: id, Name: "a", ParentId: "../x"}, false},
		"tag is a path":  {&manifestpb.Checkpoint{Version: v, Id: id, Name: "a", Tags: []string{"../x"}}, false},
		"more zeros":     {&manifestpb.Checkpoint{Version: v, Id: id, Name: "a", Logical: 1, Zero: 2}, false},
		"negative size":  {&manifestpb.Checkpoint{Version: v, Id: id, Name: "a", Logical: -1}, false},
		"too many tags": {&manifestpb.Checkpoint{Version: v, Id: id, Name: "a", Tags: make([]string, MaxTags+1)},
			false},
	} {
		b, err := proto.Marshal(tc.c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeCheckpoint(b); err == nil || errors.Is(err, ErrVersion) != tc.later {
			t.Errorf("%s: %v", name, err)
		}
		if tc.c.Version != v {
			continue // the encoder sets it
		}
		if _, err := EncodeCheckpoint(tc.c); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: encoded: %v", name, err)
		}
	}
}

func TestValidNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "A-1_b.c": true, "1:2.3+dfsg-1~rc1": true, "a@b=c%2F": true, "-a": true, "a.": true,
		strings.Repeat("a", MaxLabel): true,
		"":                            false, ".": false, "..": false, ".a": false, "+a": false, "a\n": false,
		"a,b": false, "a/b": false, "a b": false, "ä": false, "a\x00": false, strings.Repeat("a", MaxLabel+1): false,
	} {
		if ValidName(name) != want {
			t.Errorf("%q: want %v", name, want)
		}
	}
}

// TestEncodersRefuseWhatDecodersDo: a segment that could not be read is not written.
func TestEncodersRefuseWhatDecodersDo(t *testing.T) {
	many := refs(make([]uint32, limitChunks+1)...)
	for i := range many {
		many[i].Len, many[i].Stored = 1, 4096
	}
	runs := make([]Run, limitRuns+1)
	for i := range runs {
		runs[i] = Run{Start: int64(i), Len: 1, Chunk: ZeroRun}
	}
	one := []Run{{Len: 10}}
	for name, s := range map[string]*Segment{
		"too many chunks": {Chunks: many},
		"too many runs":   {Len: limitRuns + 1, Runs: runs},
		"runs with a gap": {Len: 20, Runs: []Run{{Start: 10, Len: 10, Chunk: ZeroRun}}},
		"runs too short":  {Len: 20, Runs: []Run{{Len: 10, Chunk: ZeroRun}}},
		"leaves a chunk":  {Len: 10, Chunks: refs(9), Runs: one},
		"no such chunk":   {Len: 10, Runs: one},
		"empty chunk":     {Len: 10, Chunks: []ChunkRef{{Stored: 4096}}, Runs: one},
		"enormous chunk":  {Len: 10, Chunks: refs(MaxChunk + 1), Runs: one},
		"no slot":         {Len: 10, Chunks: []ChunkRef{{Len: 10}}, Runs: one},
		"enormous slot":   {Len: 10, Chunks: []ChunkRef{{Len: 10, Stored: 1 << 20}}, Runs: one},
		"at the end":      {Start: MaxFileSize, Len: 1, Runs: []Run{{Len: 1, Chunk: ZeroRun}}},
	} {
		if _, err := EncodeSegment(s); !errors.Is(err, ErrLimit) || !errors.Is(err, errSegment) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The largest there is can be read again.
	s := &Segment{Len: limitRuns, Chunks: many[:limitChunks], Runs: runs[:limitRuns]}
	for i := range s.Runs {
		if i%2 == 1 {
			s.Runs[i].Chunk = int32(i * 7919 % limitChunks) // in no order: each takes most bytes
		}
	}
	b, err := EncodeSegment(s)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeSegment(b); err != nil || len(got.Runs) != limitRuns {
		t.Errorf("%d bytes: %v", len(b), err)
	}
}

func TestSplit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, tc := range []struct{ chunks, runs int }{{1, 1}, {MaxChunks, MaxRuns}, {MaxChunks + 1, MaxChunks + 1},
		{limitChunks, limitRuns}, {3, limitRuns}} {
		s := &Segment{Start: 1 << 20, Chunks: refs(make([]uint32, tc.chunks)...)}
		for i := range s.Chunks {
			s.Chunks[i].Len, s.Chunks[i].Stored = 4096, 4096
		}
		for i := range tc.runs {
			run := Run{Start: s.Len, Len: 1 + int64(r.IntN(4096)), Chunk: int32(i % tc.chunks)}
			if i%3 == 1 {
				run.Chunk = ZeroRun
			} else {
				run.Off = uint32(r.IntN(4097 - int(run.Len)))
			}
			s.Runs = append(s.Runs, run)
			s.Len += run.Len
		}
		var pos int
		at := s.Start
		for _, p := range s.Split() {
			if len(p.Chunks) > MaxChunks || len(p.Runs) > MaxRuns || p.Start != at {
				t.Fatalf("%+v: %d chunks, %d runs at %d, not %d", tc, len(p.Chunks), len(p.Runs), p.Start, at)
			}
			if _, err := EncodeSegment(p); err != nil {
				t.Fatal(err)
			}
			for _, run := range p.Runs {
				want := s.Runs[pos]
				if run.Len != want.Len || run.Off != want.Off || p.Start+run.Start != s.Start+want.Start ||
					(run.Chunk == ZeroRun) != (want.Chunk == ZeroRun) ||
					run.Chunk != ZeroRun && p.Chunks[run.Chunk].ID != s.Chunks[want.Chunk].ID {
					t.Fatalf("%+v: run %d became %+v", tc, pos, run)
				}
				pos++
			}
			at += p.Len
		}
		if pos != len(s.Runs) || at != s.Start+s.Len {
			t.Errorf("%+v: %d of %d runs, to %d of %d", tc, pos, len(s.Runs), at, s.Start+s.Len)
		}
	}
}

func FuzzDecodeSegment(f *testing.F) {
	for _, s := range []*Segment{
		{Len: 10, Runs: []Run{{Len: 10, Chunk: ZeroRun}}},
		{Len: 8192, Chunks: refs(4096, 4096), Runs: []Run{{Len: 4096}, {Start: 4096, Len: 4096, Chunk: 1}}},
		{Len: 96, Chunks: refs(4096), Runs: []Run{{Len: 96, Off: 4000}}},
	} {
		b, err := EncodeSegment(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		s, err := DecodeSegment(b)
		if err != nil {
			return
		}
		var pos int64
		for _, r := range s.Runs {
			if r.Start != pos || r.Len <= 0 {
				t.Fatalf("run at %d of %d bytes follows %d", r.Start, r.Len, pos)
			}
			pos += r.Len
			if r.Chunk != ZeroRun &&
				(r.Chunk < 0 || int(r.Chunk) >= len(s.Chunks) || int64(r.Off)+r.Len > int64(s.Chunks[r.Chunk].Len)) {
				t.Fatalf("run %+v leaves its chunk", r)
			}
		}
		if pos != s.Len {
			t.Fatalf("runs cover %d of %d", pos, s.Len)
		}
		again, err := EncodeSegment(s)
		if err != nil {
			t.Fatal(err)
		}
		s2, err := DecodeSegment(again)
		if err != nil {
			t.Fatal(err)
		}
		if s2.Start != s.Start || s2.Len != s.Len || !reflect.DeepEqual(s2.Chunks, s.Chunks) ||
			!reflect.DeepEqual(flat(s2), flat(s)) {
			t.Fatalf("%+v became %+v", s, s2)
		}
	})
}

func FuzzDecodeEntries(f *testing.F) {
	b, err := EncodeEntries([]*manifestpb.Entry{{Path: "a/b", Size: 3, Inline: []byte("abc")},
		{Path: "p", Size: 8192, Segments: []int64{0, 4096}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		e, err := DecodeEntries(b)
		if err != nil {
			return
		}
		for _, x := range e {
			if !ValidPath(x.Path) || x.Size < 0 || x.Zero > x.Size {
				t.Fatalf("accepted %v", x)
			}
		}
		again, err := EncodeEntries(e)
		if err != nil {
			t.Fatal(err)
		}
		if e2, err := DecodeEntries(again); err != nil || len(e2) != len(e) {
			t.Fatalf("%d entries became %d: %v", len(e), len(e2), err)
		}
	})
}

func FuzzDecodeCheckpoint(f *testing.F) {
	b, err := EncodeCheckpoint(&manifestpb.Checkpoint{Id: "00000000000000ff", Name: "a", Sealed: true,
		Tags: []string{"x"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		defer budget.Watch(t, len(b))()
		c, err := DecodeCheckpoint(b)
		if err != nil {
			return
		}
		again, err := EncodeCheckpoint(c)
		if err != nil {
			t.Fatal(err)
		}
		if c2, err := DecodeCheckpoint(again); err != nil || !proto.Equal(c, c2) {
			t.Fatalf("%v became %v: %v", c, c2, err)
		}
	})
}
