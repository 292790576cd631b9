package service

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/daemon/remotes"
	"github.com/gpucr/gpucr-fs/daemon/wire"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/s3server"
)

// TestRemoteRemoveOfAParent refuses to remove from a bucket what an incremental checkpoint there needs, and
// removes both where both are named.
func TestRemoteRemoveOfAParent(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	server := s3server.Start(t)
	server.Bucket(t, "checkpoints")
	t.Setenv("AWS_ACCESS_KEY_ID", s3server.KeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3server.Secret)
	log, dir := slog.New(slog.DiscardHandler), filepath.Join(t.TempDir(), "store")
	file, _, _, err := remotes.Make(
		t.Context(), "s3://checkpoints/p?endpoint="+server.Endpoint+"&region=us-east-1", 1<<30, index.DefaultParams(),
		remotes.Keys{}, log,
	)
	must(err)
	text, err := json.Marshal(file)
	must(err)
	must(index.Init(dir, index.InitOptions{Beside: map[string][]byte{remotes.FileName: text}}))
	o := index.Options{FreeFloor: 1}
	env := &Env{Log: log, Streams: wire.Streams{Progress: func(wire.Progress) {}}}
	env.Remote, err = remotes.Of(dir, &o, log)
	must(err)
	defer env.Remote.Close()
	env.Store, err = index.Open(t.Context(), dir, o)
	must(err)
	defer env.Store.Close()
	env.Remote.Serve(env.Store)
	for _, name := range []string{"base", "kid", "lone"} {
		d, err := env.Store.Create(t.Context(), name, index.CreateOptions{})
		must(err)
		if name == "kid" {
			must(d.SetParent("base"))
		}
		_, err = d.Seal(t.Context())
		must(err)
	}
	_, err = Sync.run(t.Context(), env, SyncRequest{})
	must(err)
	stand := func() string {
		t.Helper()
		res, err := RemoteList.run(t.Context(), env, RemoteListRequest{})
		must(err)
		var names []string
		for _, e := range res.Checkpoints {
			names = append(names, e.Name)
		}
		return strings.Join(names, " ")
	}
	res, err := RemoteRemove.run(t.Context(), env, RemoteRemoveRequest{Names: []string{"lone", "base"}})
	if index.ClassOf(err) != index.InUse || len(res.Names) > 0 || stand() != "base kid lone" {
		t.Errorf("removed %v of what kid needs, %v; there stand %q", res.Names, err, stand())
	}
	res, err = RemoteRemove.run(t.Context(), env, RemoteRemoveRequest{Names: []string{"base", "kid"}})
	if err != nil || !slices.Equal(res.Names, []string{"kid", "base"}) || stand() != "lone" {
		t.Errorf("removed %v, %v; there stand %q", res.Names, err, stand())
	}
}
