package lifecycle

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gpucr/gpucr-fs/archive"
	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/selection"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
)

// both runs a test on a session of each kind.
func both(t *testing.T, f func(t *testing.T, s *client.Session)) {
	t.Run("local", func(t *testing.T) { f(t, connect(t, newStore(t), false)) })
	t.Run("remote", func(t *testing.T) {
		dir := newStore(t)
		serve(t, dir)
		f(t, connect(t, dir, true))
	})
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestLifeOfACheckpoint goes through every operation that does not need a mount.
func TestLifeOfACheckpoint(t *testing.T) {
	both(t, func(t *testing.T, s *client.Session) {
		ctx, none := t.Context(), wire.Streams{}
		a, b := images(t, "first process "), images(t, "another process ")
		in := must[service.ImportResult](t)(
			service.Import.Do(ctx, s, service.ImportRequest{Name: "a", Source: a, Tags: []string{"golden"}}, none),
		)
		if in.Checkpoint.State != index.Sealed || in.Checkpoint.Files != 2 {
			t.Errorf("import: %+v", in)
		}
		must[service.ImportResult](t)(service.Import.Do(ctx, s, service.ImportRequest{Name: "b", Source: b}, none))
		must[service.ImportResult](t)(service.Import.Do(ctx, s, service.ImportRequest{Name: "c", Source: a}, none))

		list := must[service.ListResult](t)(service.List.Do(ctx, s, service.ListRequest{}, none)).Checkpoints
		if len(list) != 3 || list[0].Name != "a" || list[0].Logical != list[0].Zero+list[0].Unique+list[0].Shared ||
			list[0].Shared == 0 ||
			list[1].Shared != 0 {
			t.Errorf("ls: %+v", list)
		}
		if tagged := must[service.NamesResult](t)(service.Names.Do(
			ctx, s, service.NamesRequest{Select: selection.Select{Tag: "golden"}}, none)).Checkpoints; len(
			tagged,
		) != 1 ||
			tagged[0].Name != "a" {
			t.Errorf("ls --tag: %+v", tagged)
		}
		if e := must[service.EntriesResult](t)(
			service.Entries.Do(ctx, s, service.EntriesRequest{Ref: "golden"}, none)); e.Checkpoint != "a" ||
			len(e.Entries) < 2 {
			t.Errorf("entries: %+v", e)
		}
		if u := must[service.UsageResult](t)(service.Usage.Do(ctx, s, service.UsageRequest{}, none)); len(
			u.Checkpoints,
		) != 3 ||
			u.DedupeRatio <= 1 {
			t.Errorf("du: %+v", u)
		}
		if d := must[service.DiffResult](t)(
			service.Diff.Do(ctx, s, service.DiffRequest{A: "a", B: "c"}, none)); d.Unique != 0 ||
			d.Shared == 0 ||
			len(d.Files) != 2 {
			t.Errorf("diff: %+v", d)
		}
		i := must[service.InfoResult](t)(service.Info.Do(ctx, s, service.InfoRequest{Ref: "a"}, none))
		var sum int64
		for _, f := range i.Files {
			sum += f.Zero + f.Unique + f.Shared
			if f.Size != f.Zero+f.Unique+f.Shared {
				t.Errorf("info: %+v", f)
			}
		}
		if sum != i.Checkpoint.Logical || i.CRIU != nil || i.Checkpoint.Shared == 0 {
			t.Errorf("info: %+v", i)
		}
		if got := must[service.Brief](t)(
			service.Tag.Do(ctx, s, service.TagRequest{Name: "c", Add: []string{"golden", "x"}}, none)); strings.Join(
			got.Tags,
			",",
		) != "golden,x" {
			t.Errorf("tag: %+v", got.Tags)
		}
		if v := must[index.VerifyResult](t)(service.Verify.Do(
			ctx, s, service.VerifyRequest{Refs: []string{"x"}, Subset: 1}, none)); v.Checkpoints != 1 ||
			len(v.Problems) != 0 {
			t.Errorf("verify: %+v", v)
		}
		dry := must[service.RemoveResult](t)(
			service.Remove.Do(
				ctx, s, service.RemoveRequest{Keep: &service.Policy{Tags: []string{"x"}}, DryRun: true}, none,
			),
		)
		if len(dry.Removed) != 2 || len(dry.Kept) != 1 || dry.Kept[0].Name != "c" {
			t.Errorf("rm -n: %+v", dry)
		}
		must[service.RemoveResult](t)(service.Remove.Do(ctx, s, service.RemoveRequest{Names: []string{"b"}}, none))
		found := must[service.CollectResult](t)(service.Collect.Do(ctx, s, service.CollectRequest{DryRun: true}, none))
		gone := must[service.CollectResult](t)(service.Collect.Do(ctx, s, service.CollectRequest{}, none))
		if found.Reclaimable == 0 || gone.Reclaimed < found.Reclaimable || found.Reclaimed != 0 {
			t.Errorf("gc: %+v then %+v", found, gone)
		}
		if st := must[service.StatsResult](t)(
			service.LiveStats.Do(ctx, s, service.StatsRequest{}, none)); st.Daemon != s.ThroughDaemon() ||
			st.Store.FreeBytes == 0 ||
			st.Daemon && st.Mounts[0].Reads != 7 {
			t.Errorf("stats: %+v", st)
		}
	})
}

// TestStreams sends an archive in and takes it out, through a slow reader.
func TestStreams(t *testing.T) {
	both(t, func(t *testing.T, s *client.Session) {
		ctx := t.Context()
		must[service.ImportResult](t)(
			service.Import.Do(ctx, s, service.ImportRequest{Name: "a", Source: images(t, "streamed ")}, wire.Streams{}),
		)
		var out bytes.Buffer
		res := must[archive.ExportResult](t)(
			service.Export.Do(
				ctx, s, service.ExportRequest{Ref: "a", Compression: archive.Zstd}, wire.Streams{Out: &out},
			),
		)
		if res.Files != 2 {
			t.Errorf("export: %+v", res)
		}
		in := must[service.ImportResult](t)(
			service.Import.Do(
				ctx, s, service.ImportRequest{Name: "b"},
				wire.Streams{In: iotest.HalfReader(bytes.NewReader(out.Bytes()))},
			),
		)
		if in.Checkpoint.Files != 2 || in.Checkpoint.Logical != res.Bytes {
			t.Errorf("import: %+v", in)
		}
		if d := must[service.DiffResult](t)(
			service.Diff.Do(ctx, s, service.DiffRequest{A: "a", B: "b"}, wire.Streams{})); d.Unique != 0 {
			t.Errorf("what came back differs: %+v", d)
		}
		// A source that breaks off leaves nothing, wherever it breaks.
		if _, err := service.Import.Do(ctx, s, service.ImportRequest{Name: "c"},
			wire.Streams{In: bytes.NewReader(out.Bytes()[:out.Len()/2])}); err == nil {
			t.Error("half an archive was imported")
		}
		broken := io.MultiReader(
			bytes.NewReader(out.Bytes()[:out.Len()/2]),
			iotest.ErrReader(errors.New("the pipe broke")),
		)
		if _, err := service.Import.Do(ctx, s, service.ImportRequest{Name: "d"}, wire.Streams{In: broken}); err == nil {
			t.Error("a broken stream was imported")
		}
		eventually(t, func() bool {
			return len(
				must[service.NamesResult](t)(
					service.Names.Do(ctx, s, service.NamesRequest{}, wire.Streams{}),
				).Checkpoints,
			) == 2
		})
	})
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come to pass")
		}
	}
}

// TestErrorsKeepTheirClass asks for what cannot be: class, hint and text are the same on both sides of the socket.
func TestErrorsKeepTheirClass(t *testing.T) {
	texts := map[string]string{}
	both(t, func(t *testing.T, s *client.Session) {
		ctx := t.Context()
		src := images(t, "x ")
		must[service.ImportResult](t)(
			service.Import.Do(ctx, s, service.ImportRequest{Name: "a", Source: src}, wire.Streams{}),
		)
		for name, c := range map[string]struct {
			err  error
			want index.Class
		}{
			"taken name": {
				second(service.Import.Do(ctx, s, service.ImportRequest{Name: "a", Source: src}, wire.Streams{})),
				index.Exists},
			"bad name": {
				second(service.Import.Do(ctx, s, service.ImportRequest{Name: "../a", Source: src}, wire.Streams{})),
				index.Invalid},
			"no source": {second(
				service.Import.Do(ctx, s, service.ImportRequest{Name: "b", Source: "/no/such/thing"}, wire.Streams{})),
				index.NotFound},
			"relative": {
				second(service.Import.Do(ctx, s, service.ImportRequest{Name: "b", Source: "x"}, wire.Streams{})),
				index.Invalid},
			"nothing": {second(service.Info.Do(ctx, s, service.InfoRequest{Ref: "none"}, wire.Streams{})),
				index.NotFound},
			"no rm": {
				second(service.Remove.Do(ctx, s, service.RemoveRequest{Names: []string{"none"}}, wire.Streams{})),
				index.NotFound},
			"no way": {second(service.Remove.Do(ctx, s, service.RemoveRequest{}, wire.Streams{})), index.Invalid},
			"no seal": {second(service.Seal.Do(ctx, s, service.SealRequest{Name: "none"}, wire.Streams{})),
				index.NotFound},
			"full target": {second(
				service.Export.Do(ctx, s, service.ExportRequest{Ref: "a", Target: src}, wire.Streams{})), index.Exists},
		} {
			if index.ClassOf(c.err) != c.want || c.err == nil {
				t.Errorf("%s: %v is %v, want %v", name, c.err, index.ClassOf(c.err), c.want)
				continue
			}
			text := strings.ReplaceAll(c.err.Error(), src, "SRC") + "|" + index.HintOf(c.err)
			if before, ok := texts[name]; ok && before != text {
				t.Errorf("%s: %q here, %q there", name, before, text)
			}
			texts[name] = text
		}
		if got := must[service.Brief](t)(
			service.Seal.Do(ctx, s, service.SealRequest{Name: "a"}, wire.Streams{})); got.State != index.Sealed {
			t.Errorf("seal of a sealed one: %+v", got)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestStoreIsNoSource refuses to copy between a store and itself.
func TestStoreIsNoSource(t *testing.T) {
	dir := newStore(t)
	serve(t, dir)
	s := connect(t, dir, true)
	for _, src := range []string{dir, filepath.Join(dir, "packs"), filepath.Dir(dir), "/m"} {
		if _, err := service.Import.Do(t.Context(), s, service.ImportRequest{Name: "x", Source: src},
			wire.Streams{}); index.ClassOf(
			err,
		) != index.Invalid {
			t.Errorf("import of %s: %v", src, err)
		}
	}
	must[service.ImportResult](t)(
		service.Import.Do(t.Context(), s, service.ImportRequest{Name: "x", Source: images(t, "x ")}, wire.Streams{}),
	)
	for _, dst := range []string{filepath.Join(dir, "out"), "/m/out"} {
		if _, err := service.Export.Do(t.Context(), s, service.ExportRequest{Ref: "x", Target: dst},
			wire.Streams{}); index.ClassOf(
			err,
		) != index.Invalid {
			t.Errorf("export to %s: %v", dst, err)
		}
	}
}

// TestCancel stops an import while it waits for its input; the draft is gone soon after.
func TestCancel(t *testing.T) {
	dir := newStore(t)
	serve(t, dir)
	s := connect(t, dir, true)
	r, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := service.Import.Do(ctx, s, service.ImportRequest{Name: "x"}, wire.Streams{In: r})
		ended <- err
	}()
	tw := tar.NewWriter(w)
	if err := tw.WriteHeader(&tar.Header{Name: "f", Size: 10 << 20, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if _, err := tw.Write(make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		return len(
			must[service.NamesResult](t)(
				service.Names.Do(t.Context(), s, service.NamesRequest{}, wire.Streams{}),
			).Checkpoints,
		) == 1
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	w.Close()
	eventually(t, func() bool {
		return len(
			must[service.NamesResult](t)(
				service.Names.Do(t.Context(), s, service.NamesRequest{}, wire.Streams{}),
			).Checkpoints,
		) == 0
	})
}
