package manifest

import (
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/index/manifest/manifestpb"
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
		if k := len(out) - 1; k >= 0 && out[k].Chunk == r.Chunk && (r.Chunk == ZeroRun || int64(out[k].Off)+out[k].Len == int64(r.Off)) {
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
		"one chunk twice": {s: Segment{Len: 8192, Chunks: refs(4096), Runs: []Run{{Len: 4096}, {Start: 4096, Len: 4096}}}},
		"begins within":   {s: Segment{Len: 96, Chunks: refs(4096), Runs: []Run{{Len: 96, Off: 4000}}}},
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
		"runs short of the end":   {Len: 10, Runs: run(5<<2 | kindZero)},
		"runs beyond the end":     {Len: 10, Runs: run(11<<2 | kindZero)},
		"no runs":                 {Len: 10},
		"empty run":               {Len: 10, Runs: run(kindZero, 10<<2|kindZero)},
		"endless run":             {Len: 10, Runs: run(1<<64 - 4)},
		"unknown kind":            {Len: 10, Runs: run(10<<2 | 3)},
		"varint cut short":        {Len: 10, Runs: []byte{0x80}},
		"place cut short":         {Len: 10, Runs: run(10<<2|kindAt, 0), Ids: id, Lens: []uint32{10}, Stored: []uint32{4096}},
		"data without chunks":     {Len: 10, Runs: run(10<<2 | kindNext)},
		"chunk out of range":      {Len: 10, Runs: run(10<<2|kindAt, 1<<40, 0), Ids: id, Lens: []uint32{10}, Stored: []uint32{4096}},
		"offset out of range":     {Len: 10, Runs: run(10<<2|kindAt, 0, 11), Ids: id, Lens: []uint32{10}, Stored: []uint32{4096}},
		"leaves its last chunk":   {Len: 11, Runs: run(11<<2 | kindNext), Ids: id, Lens: []uint32{10}, Stored: []uint32{4096}},
		"empty chunk":             {Ids: id, Lens: []uint32{0}, Stored: []uint32{4096}},
		"enormous chunk":          {Ids: id, Lens: []uint32{16<<20 + 1}, Stored: []uint32{4096}},
		"fewer ids than lengths":  {Ids: id[:31], Lens: []uint32{10}, Stored: []uint32{4096}},
		"fewer slots than chunks": {Ids: id, Lens: []uint32{10}},
		"negative start":          {Start: -1},
		"negative length":         {Len: -1},
		"too many chunks":         {Ids: make([]byte, 32*(2*MaxChunks+1)), Lens: make([]uint32, 2*MaxChunks+1), Stored: make([]uint32, 2*MaxChunks+1)},
		"too many runs":           {Len: 1 << 30, Runs: []byte(strings.Repeat(string(run(1<<2|kindZero)), 2*MaxRuns+2))},
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
		"": false, ".": false, "..": false, "/": false, "/a": false, "../a": false, "a/..": false, "a/../b": false, "a/": false, "a//b": false, "./a": false,
		"a\x00": false, "\x00": false,
	} {
		if ValidPath(p) != want {
			t.Errorf("%q: want %v", p, want)
		}
	}
}

func TestEntries(t *testing.T) {
	good := []*manifestpb.Entry{
		{Path: "d", Type: manifestpb.Entry_DIRECTORY, Perm: 0o755}, {Path: "d/f", Size: 3, Inline: []byte("abc"), Perm: 0o600, MtimeNs: -1},
		{Path: "l", Type: manifestpb.Entry_SYMLINK, Target: "d/f"}, {Path: "p", Size: 1 << 40, Zero: 1 << 39, Number: 7, Segments: []int64{0, 1 << 30}},
	}
	b, err := EncodeEntries(good)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeEntries(b)
	if err != nil || !proto.Equal(&manifestpb.Entries{Entries: got}, &manifestpb.Entries{Entries: good}) {
		t.Errorf("got %v, %v", got, err)
	}
	for name, e := range map[string]*manifestpb.Entry{
		"path":             {Path: "../x"},
		"negative size":    {Path: "f", Size: -1},
		"negative zeros":   {Path: "f", Size: 1, Zero: -1},
		"more zeros":       {Path: "f", Size: 1, Zero: 2},
		"inline":           {Path: "f", Size: 2, Inline: []byte("abc")},
		"segment order":    {Path: "f", Size: 100, Segments: []int64{0, 50, 50}},
		"segment at end":   {Path: "f", Size: 100, Segments: []int64{0, 100}},
		"segment at -1":    {Path: "f", Size: 100, Segments: []int64{-1}},
		"segment, no size": {Path: "f", Segments: []int64{0}},
	} {
		b, err := EncodeEntries([]*manifestpb.Entry{e})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeEntries(b); err == nil || !strings.Contains(err.Error(), "malformed file table") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckpoint(t *testing.T) {
	c := &manifestpb.Checkpoint{Id: "1f", Name: "a", Sealed: true, Tags: []string{"x"}, Logical: 5}
	b, err := EncodeCheckpoint(c)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeCheckpoint(b); err != nil || !proto.Equal(got, c) || got.Version != Version {
		t.Errorf("got %v, %v", got, err)
	}
	for name, tc := range map[string]struct {
		c     *manifestpb.Checkpoint
		later bool
	}{
		"later":      {&manifestpb.Checkpoint{Version: Version + 1, Id: "1", Name: "a"}, true},
		"no version": {&manifestpb.Checkpoint{Id: "1", Name: "a"}, false},
		"no id":      {&manifestpb.Checkpoint{Version: Version, Name: "a"}, false},
		"no name":    {&manifestpb.Checkpoint{Version: Version, Id: "1"}, false},
	} {
		b, err := proto.Marshal(tc.c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeCheckpoint(b); err == nil || errors.Is(err, ErrVersion) != tc.later {
			t.Errorf("%s: %v", name, err)
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
			if r.Chunk != ZeroRun && (r.Chunk < 0 || int(r.Chunk) >= len(s.Chunks) || int64(r.Off)+r.Len > int64(s.Chunks[r.Chunk].Len)) {
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
		if s2.Start != s.Start || s2.Len != s.Len || !reflect.DeepEqual(s2.Chunks, s.Chunks) || !reflect.DeepEqual(flat(s2), flat(s)) {
			t.Fatalf("%+v became %+v", s, s2)
		}
	})
}

func FuzzDecodeEntries(f *testing.F) {
	b, err := EncodeEntries([]*manifestpb.Entry{{Path: "a/b", Size: 3, Inline: []byte("abc")}, {Path: "p", Size: 8192, Segments: []int64{0, 4096}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
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
	b, err := EncodeCheckpoint(&manifestpb.Checkpoint{Id: "1f", Name: "a", Sealed: true, Tags: []string{"x"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
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
