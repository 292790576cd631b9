package catalog

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index/crc32c"
)

const (
	one = "00000000000000000000000000000001"
	two = "0123456789abcdef0123456789abcdef"
)

func sample() Record {
	return Record{
		State: Sealed, Name: "web@1", Nonce: one, Revision: two, Meta: []byte("manifest"),
		Packs: []Pack{{two + "-7", 64 << 20}, {one + "-0", 0}},
	}
}

func TestRecordComesBack(t *testing.T) {
	bare := sample()
	bare.State, bare.Packs, bare.Meta = Void, nil, nil
	for _, r := range []Record{sample(), bare} {
		got, err := decode(r.encode())
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%+v came back as %+v, %v", r, got, err)
		}
	}
}

// summed gives text the sum that it should have.
func summed(text string) []byte {
	r := strings.NewReplacer("ONE", one, "TWO", two)
	b := []byte(r.Replace(text))
	const digits = "0123456789abcdef"
	sum := crc32c.Checksum(b)
	b = append(b, "crc32c "...)
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, digits[sum>>shift&15])
	}
	return append(b, '\n')
}

func TestRecordsRefused(t *testing.T) {
	const head = "gpucr-fs root 1\nstate sealed\nname a\nnonce ONE\nrevision TWO\n"
	if _, err := decode(summed(head)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"state":           strings.Replace(head, "sealed", "done", 1),
		"no name":         strings.Replace(head, "name a\n", "", 1),
		"a path":          strings.Replace(head, "name a", "name ../a", 1),
		"short nonce":     strings.Replace(head, "ONE", "01", 1),
		"capital nonce":   strings.Replace(head, "ONE", strings.ToUpper(two), 1),
		"other order":     "gpucr-fs root 1\nname a\nstate sealed\nnonce ONE\nrevision TWO\n",
		"twice":           head + "pack ONE-1 5\npack ONE-1 5\n",
		"two lengths":     head + "pack ONE-1 5\npack ONE-1 6\n",
		"negative":        head + "pack ONE-1 -5\n",
		"plus":            head + "pack ONE-1 +5\n",
		"leading zero":    head + "pack ONE-01 5\n",
		"not a pack":      head + "pack ../roots/a 5\n",
		"huge":            head + "pack ONE-1 99999999999999999999\n",
		"unknown word":    head + "colour red\n",
		"empty line":      head + "\n",
		"void with packs": strings.Replace(head, "sealed", "void", 1) + "pack ONE-1 5\n",
		"meta":            head + "meta !!\n",
		"meta at the end": head + "pack ONE-1 5\nmeta AAAA\n",
		"no line end":     strings.TrimSuffix(head, "\n"),
	} {
		if r, err := decode(summed(text)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: taken as %+v, %v", name, r, err)
		}
	}
	if _, err := decode(summed("gpucr-fs root 2\nwhatever\n")); !errors.Is(err, ErrVersion) {
		t.Errorf("a later version: %v", err)
	}
	whole := sample().encode()
	for i := range whole {
		if _, err := decode(whole[:i]); err == nil {
			t.Errorf("taken with %d of %d bytes", i, len(whole))
		}
		flipped := append([]byte(nil), whole...)
		flipped[i] ^= 4
		if _, err := decode(flipped); err == nil {
			t.Errorf("taken with byte %d flipped", i)
		}
	}
}

// FuzzRecord: what is taken is what would be written, and nothing else.
func FuzzRecord(f *testing.F) {
	f.Add(sample().encode())
	f.Add(summed("gpucr-fs root 1\nstate pending\nname a\nnonce ONE\nrevision TWO\npack TWO-0 1\n"))
	f.Add(summed("gpucr-fs root 1\nstate void\nname a\nnonce ONE\nrevision TWO\n"))
	f.Add([]byte("gpucr-fs root 2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// With its sum put right, more than the sum is tried.
		for _, b := range [][]byte{b, summed(string(b))} {
			r, err := decode(b)
			switch {
			case err == nil && string(r.encode()) != string(b):
				t.Fatalf("%q was taken as %+v", b, r)
			case err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion):
				t.Fatal(err)
			}
		}
	})
}
