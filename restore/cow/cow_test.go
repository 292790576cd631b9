package cow

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/chunk"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// pagesFile is a pages file that is stored in chunks of 1 to 128 pages, cut after some contents, as the store does.
type pagesFile struct {
	data []byte
	runs []index.Extent
	read atomic.Int64 // bytes
	bad  bool         // nothing can be read
}

// newPagesFile stores pages, given by a number each; 0 is a zero page.
func newPagesFile(numbers []uint64) *pagesFile {
	f := &pagesFile{}
	from := 0
	cut := func(to int) {
		if to > from {
			id := chunk.Sum(f.data[from*pageSize : to*pageSize])
			f.runs = append(f.runs, index.Extent{Off: int64(from) * pageSize, Len: int64(to-from) * pageSize, ID: id})
		}
		from = to
	}
	for i, n := range numbers {
		f.data = append(f.data, page(n)...)
		if n == 0 {
			cut(i)
			from = i + 1
			if k := len(f.runs) - 1; k >= 0 && f.runs[k].Zero && f.runs[k].Off+f.runs[k].Len == int64(i)*pageSize {
				f.runs[k].Len += pageSize
				continue
			}
			f.runs = append(f.runs, index.Extent{Off: int64(i) * pageSize, Len: pageSize, Zero: true})
			continue
		}
		if n%61 == 0 || i-from == 127 {
			cut(i + 1)
		}
	}
	cut(len(numbers))
	return f
}

func page(n uint64) []byte {
	if n == 0 {
		return make([]byte, pageSize)
	}
	return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, n), pageSize/8)
}

func (f *pagesFile) ReadAt(p []byte, off int64) (int, error) {
	f.read.Add(int64(len(p)))
	if f.bad {
		return 0, errors.New("cannot be read")
	}
	return copy(p, f.data[off:]), nil
}

func (f *pagesFile) Extents(off, n int64, yield func(index.Extent) bool) error {
	for _, x := range f.runs {
		from, to := max(x.Off, off), min(x.Off+x.Len, off+n)
		if from < to &&
			!yield(index.Extent{Off: from, Len: to - from, ID: x.ID, Zero: x.Zero, ChunkOff: from - x.Off}) {
			return nil
		}
	}
	return nil
}

const base = 1 << 32

// family makes a checkpoint of processes with one mapping, in which pages that have no number are not dumped, and
// its files.
func family(parents []int, memory [][]uint64) (*criuimg.Checkpoint, map[string]File) {
	c, files := &criuimg.Checkpoint{}, map[string]File{}
	for i, pages := range memory {
		name := string(rune('a' + i))
		whole := criuimg.VMA{Start: base, End: base + uint64(len(pages))*pageSize, Flags: 0x22, Status: 513}
		t := criuimg.Task{PID: i + 1, PPID: parents[i] + 1, VMAs: []criuimg.VMA{whole}}
		var stored []uint64
		for k, n := range pages {
			if n == missing {
				continue
			}
			at := base + uint64(k)*pageSize
			if j := len(t.Ranges) - 1; j >= 0 && t.Ranges[j].End == at {
				t.Ranges[j].End += pageSize
			} else {
				r := criuimg.Range{Start: at, End: at + pageSize, File: name, Off: int64(len(stored)) * pageSize}
				t.Ranges = append(t.Ranges, r)
			}
			stored = append(stored, n)
		}
		c.Tasks, files[name] = append(c.Tasks, t), newPagesFile(stored)
	}
	return c, files
}

const missing = ^uint64(0)

// found gives the pages of spans.
func found(spans []criuimg.Span, n int) []bool {
	out := make([]bool, n)
	for _, s := range spans {
		for at := s.Start; at < s.End; at += pageSize {
			out[(at-base)/pageSize] = true
		}
	}
	return out
}

// Whatever processes have changed, what is found is equal or among much that is; of what is equal little is
// overlooked, and nothing where mappings are small. Pages of zeros are left.
func TestFind(t *testing.T) {
	for seed := range uint64(25) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		n := 1 << (4 + rnd.IntN(9))
		block := 1 << rnd.IntN(10)
		changed := rnd.Float64()
		root := make([]uint64, n)
		for i := range root {
			switch rnd.IntN(12) {
			case 0:
				root[i] = missing
			case 1:
				root[i] = 0
			default:
				root[i] = 1 + rnd.Uint64N(1<<40)
			}
		}
		fork := func(of []uint64) []uint64 {
			out := append([]uint64(nil), of...)
			for i := 0; i < n; i += block {
				if rnd.Float64() < changed {
					for k := i; k < min(i+block, n); k++ {
						out[k] = 1 + rnd.Uint64N(1<<40)
					}
				}
			}
			return out
		}
		child := fork(root)
		memory := [][]uint64{root, child, fork(root), fork(child)}
		parents := []int{-1, 0, 0, 1}
		c, files := family(parents, memory)
		got := Find(c, files)
		want := make([][]bool, len(memory))
		for i := range want {
			want[i] = make([]bool, n)
		}
		all, hits, wrong := 0, 0, 0
		for i, p := range parents {
			for k := range n {
				if p >= 0 && memory[i][k] == memory[p][k] && memory[i][k] != 0 && memory[i][k] != missing {
					want[i][k], want[p][k] = true, true
				}
			}
		}
		for i := range memory {
			var spans []criuimg.Span
			if got != nil {
				spans = got[i]
			}
			for k, yes := range found(spans, n) {
				if yes && !want[i][k] {
					wrong++
				}
				if want[i][k] {
					all++
				}
				if yes {
					hits++
				}
			}
		}
		if n <= few*window/pageSize && wrong > 0 || wrong > hits/2 {
			t.Errorf("seed %d: %d of %d pages are not shared", seed, wrong, hits)
		}
		if n <= few*window/pageSize && hits-wrong != all || hits-wrong < all*9/10 {
			t.Errorf("seed %d: %d of %d pages found, of %d, blocks of %d, %.0f %% changed",
				seed, hits, all, n, block, changed*100)
		}
	}
}

// Where nothing is shared next to nothing is read, where chunks are, nothing else.
func TestReads(t *testing.T) {
	const n = 1 << 15
	one, other := make([]uint64, n), make([]uint64, n)
	for i := range one {
		one[i], other[i] = uint64(i)*7919+1, uint64(i)*104729+2
	}
	for _, tc := range []struct {
		name  string
		child []uint64
		most  int64
		equal bool
	}{{"nothing", other, 2 * few * window, false}, {"all", one, 0, true}} {
		c, files := family([]int{-1, 0}, [][]uint64{one, tc.child})
		got := Find(c, files)
		if read := files["a"].(*pagesFile).read.Load() + files["b"].(*pagesFile).read.Load(); read > tc.most {
			t.Errorf("%s: %d bytes are read", tc.name, read)
		}
		whole := []criuimg.Span{{Start: base, End: base + n*pageSize}}
		want := [][]criuimg.Span{whole, whole}
		if tc.equal && !reflect.DeepEqual(got, want) || !tc.equal && got != nil {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

// What cannot be read is not taken for equal, and fails nothing.
func TestUnreadable(t *testing.T) {
	pages := []uint64{1, 2, 3, 4, 5, 6}
	c, files := family([]int{-1, 0}, [][]uint64{pages, {1, 2, 3, 9, 5, 6}})
	if got := Find(c, files); len(got) != 2 || len(got[0]) != 2 {
		t.Errorf("%v", got)
	}
	files["b"].(*pagesFile).bad = true
	if got := Find(c, files); got != nil {
		t.Errorf("%v", got)
	}
}
