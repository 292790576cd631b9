package remote_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/index/cipher"
	"github.com/gpucr/gpucr-fs/index/remote"
	"github.com/gpucr/gpucr-fs/index/remote/bucket"
	"github.com/gpucr/gpucr-fs/index/remote/bucket/memory"
	"github.com/gpucr/gpucr-fs/index/remote/catalog"
)

// learn gives a checkpoint of a machine a profile and a hot set, and gives its id.
func (m *machine) learn(t *testing.T, name, profile string, hot []byte) string {
	t.Helper()
	must(t, m.SetProfile(name, []byte(profile)))
	must(t, m.SetHotSet(name, int64(len(hot)), func(w io.Writer) error {
		_, err := w.Write(hot)
		return err
	}))
	i, err := m.Info(name)
	must(t, err)
	return i.ID
}

// pushLearned takes what was learned to the bucket.
func (m *machine) pushLearned(t *testing.T, id string) {
	t.Helper()
	p, err := m.Profile(id)
	must(t, err)
	must(t, m.remote.PutProfile(t.Context(), id, p))
	done, err := m.remote.PushHot(t.Context(), m.Store, id, p, func(int64) {})
	if !done || err != nil {
		t.Fatalf("the hot set: %v, %v", done, err)
	}
}

// pulled pulls a checkpoint, and gives the hot set that came with it, nil for none, and the requests that the pull
// made.
func (m *machine) pulled(t *testing.T, meter *bucket.Meter, name string) ([]byte, map[bucket.Kind]int64) {
	t.Helper()
	before := meter.Counts()
	i, err := m.remote.Pull(t.Context(), m.Store, name, name)
	must(t, err)
	made := map[bucket.Kind]int64{}
	for k, c := range meter.Counts() {
		if n := c.Requests - before[k].Requests; n > 0 {
			made[k] = n
		}
	}
	f, err := m.HotSet(i.ID)
	if index.ClassOf(err) == index.NotFound {
		return nil, made
	}
	must(t, err)
	defer f.Close()
	if len(f.Pieces()) == 0 {
		t.Error("the hot set does not lie in the bucket")
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	must(t, err)
	return b, made
}

// TestHotSetPackedLater: a hot set that was packed after its checkpoint was pushed comes to the bucket, and with the
// checkpoint to other machines, in plain and in encrypted stores; it is verified, replaced and collected.
func TestHotSetPackedLater(t *testing.T) {
	for name, make := range map[string]func(bucket.Bucket) *machine{
		"plain":     func(b bucket.Bucket) *machine { return newMachine(t, b) },
		"encrypted": func(b bucket.Bucket) *machine { return secretMachine(t, b, cipher.Hooks{}) },
	} {
		t.Run(name, func(t *testing.T) {
			var meter bucket.Meter
			b := memory.New(memory.Hooks{})
			one := make(b)
			web := map[string][]byte{"pages-1.img": noise(1, 2<<20), "core.img": []byte("core")}
			one.dump(t, "web", web)
			_, err := one.remote.Push(t.Context(), one.Store, "web")
			must(t, err)
			hot, none := make(meter.Over(b)).pulled(t, &meter, "web")
			if hot != nil || len(none) != 1 {
				t.Errorf("nothing was learned: a hot set of %d bytes, %v", len(hot), none)
			}

			first := append(noise(7, 1_300_000), "secret-hot"...)
			id := one.learn(t, "web", "first", first)
			must(t, one.remote.PutProfile(t.Context(), id, []byte("first")))
			hot, missing := make(meter.Over(b)).pulled(t, &meter, "web")
			if hot != nil || len(missing) != 1 || missing[bucket.KindGet] > none[bucket.KindGet]+1 {
				t.Errorf("a profile alone: a hot set of %d bytes, %v after %v", len(hot), missing, none)
			}
			one.pushLearned(t, id)
			one.pushLearned(t, id) // nothing new
			two := make(meter.Over(b))
			hot, made := two.pulled(t, &meter, "web")
			if !bytes.Equal(hot, first) {
				t.Errorf("pulled a hot set of %d bytes", len(hot))
			}
			if len(made) != 1 || made[bucket.KindGet] > missing[bucket.KindGet]+1 {
				t.Errorf("the pull made %v, without a hot set %v", made, missing)
			}
			must(t, two.holds("web", web))

			list, err := two.remote.List(t.Context())
			if err != nil || len(list) != 1 || list[0].Name != "web" {
				t.Errorf("the list is %+v, %v", list, err)
			}
			for _, names := range [][]string{nil, {"web"}} {
				v, err := two.remote.Verify(t.Context(), remote.VerifyOptions{Names: names, Holds: two.Holds})
				if err != nil || len(v.Problems) > 0 || v.Checkpoints != 1 || v.Packs != 2 || v.Bytes < 3_300_000 {
					t.Errorf("verify %q: %+v, %v", names, v, err)
				}
			}
			beside := catalog.Beside(id)
			_, perr := two.remote.Pull(t.Context(), two.Store, beside, "x")
			_, ferr := two.remote.Find(t.Context(), beside)
			_, verr := two.remote.Verify(t.Context(), remote.VerifyOptions{Names: []string{beside}, Holds: two.Holds})
			for _, err := range []error{perr, ferr, verr, two.remote.Remove(t.Context(), beside)} {
				if index.ClassOf(err) != index.NotFound {
					t.Errorf("a hot set is taken for a checkpoint: %v", err)
				}
			}

			// Another one takes its place.
			second := noise(8, 600_000)
			one.learn(t, "web", "second", second)
			one.pushLearned(t, id)
			one.collect(t)
			if hot, _ := make(meter.Over(b)).pulled(t, &meter, "web"); !bytes.Equal(hot, second) {
				t.Errorf("pulled another hot set of %d bytes", len(hot))
			}
			// One by another profile than that of the bucket is not taken.
			must(t, one.remote.PutProfile(t.Context(), id, []byte("third")))
			if hot, _ := make(meter.Over(b)).pulled(t, &meter, "web"); hot != nil {
				t.Errorf("pulled a hot set of another profile, %d bytes", len(hot))
			}
			for _, key := range b.Keys() {
				content := b.Content(key)
				for _, text := range []string{"secret-hot", `"profile":`} {
					if name == "encrypted" && bytes.Contains(content, []byte(text)) {
						t.Errorf("the object %s holds %q", key, text)
					}
				}
				if strings.HasPrefix(key, "packs/") && len(content) > 590_000 && len(content) < 700_000 {
					flipped := bytes.Clone(content)
					flipped[1000] ^= 1
					must(t, b.Apply(memory.Call{Op: "put", Key: key, Content: flipped}))
				}
			}
			v, err := two.remote.Verify(t.Context(), remote.VerifyOptions{Holds: two.Holds})
			if err != nil || len(v.Problems) != 1 || v.Problems[0].Checkpoint != id ||
				!strings.HasPrefix(v.Problems[0].Text, "its hot set: ") {
				t.Errorf("a byte of a hot set changed: %+v, %v", v, err)
			}

			must(t, one.remote.Remove(t.Context(), "web"))
			must(t, one.remote.SweepLearned(t.Context()))
			one.collect(t)
			if keys := b.Keys(); len(keys) != 1 {
				t.Errorf("all is removed, and there are %q", keys)
			}
		})
	}
}

// TestHotSetFailsAnywhere has each request fail: the hot set is there or not, the checkpoint always, and the next
// attempt succeeds.
func TestHotSetFailsAnywhere(t *testing.T) {
	hot := noise(7, 600_000)
	for lost := range 2 {
		for k := 1; ; k++ {
			n, broken := 0, false
			b := memory.New(memory.Hooks{})
			faulty := &failing{Bucket: b, fail: func() (happens bool, err error) {
				if !broken {
					return true, nil
				}
				if n++; n >= k {
					return lost == 1 && n == k, bucket.Fail(bucket.Transient, "request", "", "the link is cut")
				}
				return true, nil
			}}
			one := newMachineWith(t, faulty, remembered{})
			one.dump(t, "web", map[string][]byte{"core.img": []byte("core")})
			_, err := one.remote.Push(t.Context(), one.Store, "web")
			must(t, err)
			id := one.learn(t, "web", "old", noise(6, 1000))
			one.pushLearned(t, id)
			one.learn(t, "web", "new", hot)
			must(t, one.remote.PutProfile(t.Context(), id, []byte("new")))
			broken = true
			done, err := one.remote.PushHot(t.Context(), one.Store, id, []byte("new"), func(int64) {})
			broken = false
			var meter bucket.Meter
			if got, _ := newMachine(t, b).pulled(t, &meter, "web"); got != nil && !bytes.Equal(got, hot) ||
				got == nil && done {
				t.Fatalf("request %d: pushed: %v, %v, and pulled %d bytes", k, done, err, len(got))
			}
			one.pushLearned(t, id)
			if got, _ := newMachine(t, b).pulled(t, &meter, "web"); !bytes.Equal(got, hot) {
				t.Fatalf("request %d: pushed again, and pulled %d bytes", k, len(got))
			}
			if done {
				if k < 4 {
					t.Errorf("a push of a hot set makes %d requests", k-1)
				}
				break
			}
		}
	}
}

// TestHotSetOfAnother: while another machine pushes the hot set of a checkpoint, nothing is done and nothing fails.
// Where the checkpoint's hot set is gone, neither.
func TestHotSetOfAnother(t *testing.T) {
	b := memory.New(memory.Hooks{})
	one := newMachine(t, b)
	one.dump(t, "web", map[string][]byte{"core.img": []byte("core")})
	_, err := one.remote.Push(t.Context(), one.Store, "web")
	must(t, err)
	id := one.learn(t, "web", "profile", noise(6, 1000))
	d, err := catalog.New(b, catalog.Options{}).Begin(t.Context(), catalog.Beside(id))
	must(t, err)
	push := func() (bool, error) {
		return one.remote.PushHot(t.Context(), one.Store, id, []byte("profile"), func(int64) {})
	}
	if done, err := push(); done || err != nil {
		t.Errorf("another pushes it: %v, %v", done, err)
	}
	must(t, d.Abort(t.Context()))
	must(t, one.SetProfile("web", []byte("other")))
	if done, err := push(); done || err != nil {
		t.Errorf("the hot set is gone: %v, %v", done, err)
	}
}
