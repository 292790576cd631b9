package service

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/check"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/criukinds"
)

// What check says of the images is what a restore on demand will say.
func TestCheckKinds(t *testing.T) {
	s := open(t)
	for i, k := range criukinds.All() {
		d, err := s.Store.Create(t.Context(), fmt.Sprintf("kind-%d", i), index.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for name, f := range k.Images {
			out, err := d.Create(name, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := out.WriteAt(f.Data, 0); err != nil {
				t.Fatal(err)
			}
			if err := out.Close(); err != nil {
				t.Fatal(err)
			}
		}
		info, err := d.Seal(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r := must[check.Report](t)(Check.Do(t.Context(), s, CheckRequest{Ref: info.ID, Fast: true}, wire.Streams{}))
		for _, sec := range r.Sections {
			problems := strings.Join(sec.Problems, "; ")
			if sec.Name == "images" && (k.Refused == "") != (problems == "") ||
				sec.Name == "images" && !strings.Contains(problems, k.Refused) {
				t.Errorf("%s: problems %q, want %q", k.Name, problems, k.Refused)
			}
		}
	}
}
