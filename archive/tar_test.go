package archive

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/budget"
)

// memTree keeps the rules of a draft: no doubles, parents must be directories.
type memTree struct {
	nodes  map[string]byte // 'd', 'f' or 'l'
	sizes  map[string]int64
	links  map[string]string
	parent string
	bytes  int64
}

func newMemTree() *memTree {
	return &memTree{nodes: map[string]byte{".": 'd'}, sizes: map[string]int64{}, links: map[string]string{}}
}

func (m *memTree) add(p string, kind byte) error {
	if _, ok := m.nodes[p]; ok {
		return &index.Error{Class: index.Exists}
	}
	if m.nodes[path.Dir(p)] != 'd' {
		return &index.Error{Class: index.NotFound}
	}
	m.nodes[p] = kind
	return nil
}

func (m *memTree) Mkdir(p string, _ fs.FileMode) error { return m.add(p, 'd') }
func (m *memTree) Symlink(target, p string) error {
	m.links[p] = target
	return m.add(p, 'l')
}
func (m *memTree) SetAttr(p string, _ index.Attr) error {
	if _, ok := m.nodes[p]; !ok {
		return &index.Error{Class: index.NotFound}
	}
	return nil
}
func (m *memTree) SetParent(name string) error {
	if name != "base" {
		return &index.Error{Class: index.NotFound}
	}
	m.parent = name
	return nil
}
func (m *memTree) imagesOf(string) (string, error) { return ".", nil }
func (m *memTree) create(p string, _ fs.FileMode) (file, error) {
	return &memFile{m, p}, m.add(p, 'f')
}

type memFile struct {
	m *memTree
	p string
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.m.sizes[f.p] = max(f.m.sizes[f.p], off+int64(len(p)))
	f.m.bytes += int64(len(p))
	return len(p), nil
}
func (f *memFile) Truncate(n int64) error {
	f.m.sizes[f.p] = n
	return nil
}
func (f *memFile) Close() error { return nil }

func readInto(t testing.TB, m *memTree, r io.Reader, o ImportOptions) error {
	o.setDefaults()
	b := newBuilder(m, o)
	if err := readArchive(t.Context(), b, r, 0); err != nil {
		return err
	}
	return b.close()
}

// member is one header with its content.
type member struct {
	h    tar.Header
	body string
}

func reg(name, body string) member { return member{tar.Header{Name: name, Mode: 0o600}, body} }
func special(kind byte, name, target string) member {
	return member{h: tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o700}}
}

// at gives a member another time, in seconds since 1970.
func at(m member, sec int64) member {
	m.h.ModTime, m.h.Format = time.Unix(sec, 0), tar.FormatPAX
	return m
}

func makeTar(t testing.TB, members ...member) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, m := range members {
		m.h.Size = int64(len(m.body))
		if m.h.ModTime.IsZero() {
			m.h.ModTime = time.Unix(1700000000, 0)
		}
		if err := w.WriteHeader(&m.h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func pack(t testing.TB, z Compression, plain []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := compress(&buf, z)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// podman is an archive as podman writes it.
func podman(t testing.TB) []byte {
	return makeTar(
		t, special(tar.TypeDir, "./", ""), reg("config.dump", "{}"), special(tar.TypeDir, "checkpoint/", ""),
		reg("checkpoint/inventory.img", "inventory"), reg("checkpoint/pages-1.img", strings.Repeat("p", 70000)),
		reg("artifacts/deep/x", ""),
	)
}

func TestArchiveFormats(t *testing.T) {
	for _, z := range []Compression{Plain, Gzip, Zstd} {
		for _, slow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s slow=%v", z, slow), func(t *testing.T) {
				var r io.Reader = bytes.NewReader(pack(t, z, podman(t)))
				if slow {
					r = iotest.HalfReader(r)
				}
				m := newMemTree()
				if err := readInto(t, m, r, ImportOptions{}); err != nil {
					t.Fatal(err)
				}
				want := map[string]byte{
					".":                        'd',
					"config.dump":              'f',
					"checkpoint":               'd',
					"checkpoint/inventory.img": 'f',
					"checkpoint/pages-1.img":   'f',
					"artifacts":                'd',
					"artifacts/deep":           'd',
					"artifacts/deep/x":         'f',
				}
				if fmt.Sprint(m.nodes) != fmt.Sprint(want) || m.sizes["checkpoint/pages-1.img"] != 70000 {
					t.Errorf("got %v %v", m.nodes, m.sizes)
				}
			})
		}
	}
}

func TestHostileArchives(t *testing.T) {
	for _, c := range []struct {
		name    string
		members []member
		want    string
	}{
		{"absolute", []member{reg("/etc/passwd", "x")}, "absolute"},
		{"dotdot", []member{reg("a/../../b", "x")}, `".."`},
		{"reserved", []member{reg(".checkpoints/x", "x")}, "reserved"},
		{"link out", []member{reg("f", "x"), special(tar.TypeSymlink, "l", "../../etc")}, "out of the tree"},
		{"absolute link", []member{reg("f", "x"), special(tar.TypeSymlink, "l", "/etc/passwd")}, "out of the tree"},
		{"chained link", []member{reg("f", "x"), special(tar.TypeSymlink, "d", "."),
			special(tar.TypeSymlink, "l", "d/../etc")}, "climbs"},
		{"write through a link", []member{special(tar.TypeSymlink, "d", "sub"), reg("d/f", "x")},
			"directory and as a symbolic link"},
		{"hard link", []member{reg("f", "x"), special(tar.TypeLink, "l", "f")}, "hard links"},
		{"character device", []member{special(tar.TypeChar, "null", "")}, "devices"},
		{"block device", []member{special(tar.TypeBlock, "sda", "")}, "devices"},
		{"pipe", []member{special(tar.TypeFifo, "p", "")}, "devices and pipes"},
		{"doubled file", []member{reg("f", "x"), reg("./f", "y")}, "twice"},
		{"file then directory", []member{reg("f", "x"), special(tar.TypeDir, "f/", "")}, "twice"},
		{"directory then file", []member{special(tar.TypeDir, "f/", ""), reg("f", "x")}, "directory and as a file"},
		{"below a file", []member{reg("f", "x"), reg("f/g", "y")}, "twice"},
		{"link over a file", []member{reg("f", "x"), special(tar.TypeSymlink, "f", "g")}, "twice"},
		{"time in 2263", []member{at(reg("f", "x"), 9250000000)}, "outside of the years"},
		{"time in 1670", []member{at(reg("f", "x"), -9450000000)}, "outside of the years"},
		{"time without end", []member{at(reg("f", "x"), 1<<62)}, "outside of the years"},
		{"folder in 2263", []member{reg("d/f", "x"), at(special(tar.TypeDir, "d/", ""), 9250000000)},
			"outside of the years"},
		{"empty", nil, "no files"},
		{"only directories", []member{special(tar.TypeDir, "d/", "")}, "no files"},
		{"absolute parent", []member{reg("inventory.img", "x"), special(tar.TypeSymlink, "parent", "/dumps/unknown")},
			"unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := readInto(t, newMemTree(), bytes.NewReader(makeTar(t, c.members...)), ImportOptions{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a refusal about %q", err, c.want)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	three := makeTar(t, reg("a", "aaaa"), reg("d/b", "bbbb"))
	for _, c := range []struct {
		o  ImportOptions
		ok bool
	}{{ImportOptions{MaxFiles: 3}, true}, {ImportOptions{MaxFiles: 2}, false},
		{ImportOptions{MaxBytes: 8}, true}, {ImportOptions{MaxBytes: 7}, false}} {
		err := readInto(t, newMemTree(), bytes.NewReader(three), c.o)
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.o, err)
		}
		if err != nil && !strings.Contains(index.HintOf(err), "--max-") {
			t.Errorf("%v: the hint does not name the flag: %q", err, index.HintOf(err))
		}
	}
	// A header may announce any size; it must be refused before anything is written.
	m := newMemTree()
	var buf bytes.Buffer
	huge := &tar.Header{Name: "f", Size: 1 << 62, Format: tar.FormatGNU}
	if err := tar.NewWriter(&buf).WriteHeader(huge); err != nil {
		t.Fatal(err)
	}
	if err := readInto(t, m, &buf, ImportOptions{}); err == nil || m.bytes > 0 {
		t.Errorf("a file of 2^62 bytes: %v, %d bytes written", err, m.bytes)
	}
}

// TestBomb feeds what expands 30,000 times: a good GiB of zeros under zstd, in frames that are alike.
func TestBomb(t *testing.T) {
	const frame, frames = 32 << 20, ratioGrace>>25 + 1
	const size = frame * frames
	var head, buf bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "f", Mode: 0o600, Size: size}); err != nil {
		t.Fatal(err)
	}
	buf.Write(pack(t, Zstd, head.Bytes()))
	buf.Write(bytes.Repeat(pack(t, Zstd, make([]byte, frame)), frames))
	buf.Write(pack(t, Zstd, make([]byte, 1024)))
	m := newMemTree()
	err := readInto(t, m, bytes.NewReader(buf.Bytes()), ImportOptions{})
	if err == nil || !strings.Contains(err.Error(), "bomb") {
		t.Errorf("%d bytes that expand to %d: %v", buf.Len(), size, err)
	}
	if m.bytes > ratioGrace+blockSize {
		t.Errorf("%d bytes were written before the refusal", m.bytes)
	}
	if err := readInto(t, newMemTree(), bytes.NewReader(buf.Bytes()), ImportOptions{MaxRatio: 1 << 20}); err != nil {
		t.Errorf("with a raised ratio: %v", err)
	}
}

// TestDamagedArchives cuts and changes archives: none may be taken for complete.
func TestDamagedArchives(t *testing.T) {
	plain := podman(t)
	for _, z := range []Compression{Plain, Gzip, Zstd} {
		whole := pack(t, z, plain)
		for _, keep := range []int{0, 1, 3, 100, 512, 1024, len(whole) / 2,
			len(whole) - 1025, len(whole) - 1024, len(whole) - 9, len(whole) - 5, len(whole) - 1} {
			if keep < 0 || keep >= len(whole) || z == Plain && keep > len(whole)-1024 {
				continue // of a tar's trailer, one block suffices
			}
			if err := readInto(t, newMemTree(), bytes.NewReader(whole[:keep]), ImportOptions{}); err == nil {
				t.Errorf("%s: the first %d of %d bytes were taken for complete", z, keep, len(whole))
			}
		}
		more := append(bytes.Clone(whole), pack(t, z, plain)...)
		if err := readInto(t, newMemTree(), bytes.NewReader(more), ImportOptions{}); err == nil ||
			!strings.Contains(err.Error(), "more after the end") {
			t.Errorf("%s: two archives in a row: %v", z, err)
		}
	}
	for _, z := range []Compression{Gzip, Zstd} {
		flipped := pack(t, z, plain)
		flipped[len(flipped)-3] ^= 1 // within the checksum
		if err := readInto(t, newMemTree(), bytes.NewReader(flipped), ImportOptions{}); err == nil {
			t.Errorf("%s: a wrong checksum went unnoticed", z)
		}
	}
	if err := readInto(t, newMemTree(), strings.NewReader(strings.Repeat("no archive at all ", 100)),
		ImportOptions{}); err == nil ||
		!strings.Contains(err.Error(), "not a checkpoint archive") {
		t.Errorf("a text: %v", err)
	}
}

func TestParentLink(t *testing.T) {
	for _, c := range []struct {
		name    string
		members []member
		o       ImportOptions
		target  string // of the link, "" for a refusal
		parent  string
	}{
		{"by base name", []member{reg("inventory.img", "x"), special(tar.TypeSymlink, "parent", "../base")},
			ImportOptions{}, "../base", "base"},
		{"absolute", []member{reg("inventory.img", "x"), special(tar.TypeSymlink, "parent", "/dumps/base")},
			ImportOptions{}, "../base", "base"},
		{"by option", []member{reg("inventory.img", "x"), special(tar.TypeSymlink, "parent", "../1")},
			ImportOptions{Parent: "base"}, "../base", "base"},
		{"unknown", []member{reg("inventory.img", "x"), special(tar.TypeSymlink, "parent", "../1")},
			ImportOptions{}, "", ""},
		{"nested", []member{reg("checkpoint/inventory.img", "x"),
			special(tar.TypeSymlink, "checkpoint/parent", "../pre-checkpoint")},
			ImportOptions{Parent: "base"}, "../../base", "base"},
		{"in the same archive", []member{reg("pre-checkpoint/i", "x"),
			reg("checkpoint/i", "x"), special(tar.TypeSymlink, "checkpoint/parent", "../pre-checkpoint")},
			ImportOptions{}, "../pre-checkpoint", ""},
		{"elsewhere it is a link like others",
			[]member{reg("f", "x"), special(tar.TypeSymlink, "a/b/parent", "../../../base")}, ImportOptions{}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMemTree()
			err := readInto(t, m, bytes.NewReader(makeTar(t, c.members...)), c.o)
			if c.target == "" {
				if err == nil {
					t.Fatal("not refused")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range m.links {
				if got != c.target || m.parent != c.parent {
					t.Errorf("link to %q with parent %q, want %q and %q", got, m.parent, c.target, c.parent)
				}
			}
		})
	}
}

// TestGNUSparse reads what GNU tar makes of a file with holes.
func TestGNUSparse(t *testing.T) {
	dir := t.TempDir()
	for _, format := range []string{"gnu", "pax"} {
		out, err := exec.Command("sh", "-c",
			`cd "$1" && truncate -s 8M pages-1.img &&
			printf end | dd of=pages-1.img bs=1 seek=4000000 conv=notrunc status=none &&
			tar --format=$2 -S -cf - pages-1.img`,
			"sh", dir, format).
			Output()
		if err != nil {
			t.Fatalf("tar: %v (install tar)", err)
		}
		if len(out) > 1<<20 {
			t.Fatalf("tar did not make a sparse archive: %d bytes", len(out))
		}
		m := newMemTree()
		if err := readInto(t, m, bytes.NewReader(out), ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		if m.sizes["pages-1.img"] != 8<<20 {
			t.Errorf("%s: sizes %v", format, m.sizes)
		}
	}
}

// FuzzArchive holds any input to this: what was taken lies within the tree and the limits.
func FuzzArchive(f *testing.F) {
	seeds := [][]byte{
		podman(f), makeTar(f, reg("inventory.img", "x"), special(tar.TypeSymlink, "parent", "../base")),
		makeTar(
			f, reg("a/b", "x"), special(tar.TypeSymlink, "l", "a/b"),
		), makeTar(f, special(tar.TypeLink, "l", "f")), {},
	}
	for _, s := range seeds {
		f.Add(s)
		f.Add(pack(f, Gzip, s))
		f.Add(pack(f, Zstd, s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defer budget.Watch(t, len(data))()
		m := newMemTree()
		o := ImportOptions{MaxFiles: 100, MaxBytes: 1 << 20}
		err := readInto(t, m, bytes.NewReader(data), o)
		if m.bytes > o.MaxBytes || len(m.nodes) > o.MaxFiles+1 {
			t.Errorf("the limits did not hold: %d bytes, %d entries", m.bytes, len(m.nodes))
		}
		for p := range m.nodes {
			if !fs.ValidPath(p) || p == reserved || strings.HasPrefix(p, reserved+"/") {
				t.Errorf("entry %q", p)
			}
		}
		if err != nil {
			return
		}
		for p, target := range m.links {
			if m.parent != "" && isParentLink(p) {
				continue
			}
			if strings.HasPrefix(target, "/") || !fs.ValidPath(path.Join(path.Dir(p), target)) {
				t.Errorf("link %q leads to %q", p, target)
			}
		}
	})
}
