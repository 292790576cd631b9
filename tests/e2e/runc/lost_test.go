package runc

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/tests/cli"
)

// start runs the container. What its configuration has under keys is set before.
func (s *stored) start(annotations map[string]string) {
	s.t.Helper()
	file := filepath.Join(s.bundle, "config.json")
	text, err := os.ReadFile(file)
	must(s.t, err)
	var spec map[string]any
	must(s.t, json.Unmarshal(text, &spec))
	for k, v := range annotations {
		spec["annotations"].(map[string]any)[k] = v
	}
	text, err = json.Marshal(spec)
	must(s.t, err)
	must(s.t, os.WriteFile(file, text, 0o644))
	must(s.t, s.runc("run", "-d", "--bundle", s.bundle, s.name))
	must(s.t, s.mem.Ready(limit))
}

// around has the runtime's commands be run by a shell script. In it, runc runs the command itself, and needs NAME tells
// whether it is the one of that name.
func (s *stored) around(script string) {
	s.t.Helper()
	runc, err := exec.LookPath("runc")
	must(s.t, err)
	file := filepath.Join(s.dir, "around")
	script = `#!/bin/bash
all=("$@")
runc() { ` + runc + ` "${all[@]}"; }
needs() { [[ " ${all[*]} " == *" $1 "* && " ${all[*]} " != *--help* ]]; }
` + script + "\n"
	must(s.t, os.WriteFile(file, []byte(script), 0o755))
	text, err := json.Marshal(map[string]string{"store": s.store, "criu": s.criu, "runtime": file})
	must(s.t, err)
	must(s.t, os.WriteFile(filepath.Join(s.dir, "runtime.json"), text, 0o600))
}

// status is what the runtime says of the container, "" where it knows of none.
func (s *stored) status() string {
	s.t.Helper()
	out, err := exec.Command("runc", "--root", filepath.Join(s.bundle, "state"), "state", s.name).Output()
	if err != nil {
		return ""
	}
	var state struct{ Status string }
	must(s.t, json.Unmarshal(out, &state))
	return state.Status
}

// restored brings the container back, whole, and ends it.
func (s *stored) restored(images string) {
	s.t.Helper()
	s.mem.Reset()
	work := filepath.Join(s.t.TempDir(), "work")
	if err := s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, "--work-path", work,
		s.name); err != nil {
		s.t.Fatalf("%v\n%s", err, cli.Log(s.store))
	}
	must(s.t, s.mem.Check(1, limit))
	s.quiet()
	must(s.t, s.runc("delete", "-f", s.name))
}

// settled waits until the only checkpoint of the store is in a state.
func (s *stored) settled(want index.State) index.Info {
	s.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		all := s.checkpoints()
		if len(all) == 1 && all[0].State == want {
			return all[0]
		}
		if time.Now().After(end) {
			s.t.Fatalf("the store has %+v, not one that is %s\n%s", all, want, cli.Log(s.store))
		}
	}
}

// TestKilledCheckpoint: gpucr-fs is killed when the container has been dumped and has ended.
func TestKilledCheckpoint(t *testing.T) {
	s := newStored(t)
	s.around("runc; code=$?; if needs checkpoint; then kill -9 $PPID; sleep 600; fi; exit $code")
	images := filepath.Join(s.dir, "images")
	s.start(nil)
	if err := s.runc("checkpoint", "--image-path", images, s.name); err == nil {
		t.Fatal("a checkpoint succeeded that was killed")
	}
	s.settled(index.Sealed)
	s.around("runc")
	s.quiet()
	must(t, s.runc("delete", "-f", s.name))
	s.restored(images)
}

// TestKilledCheckpointOfRunning: gpucr-fs is killed when the container has been dumped and goes on. What it wrote is no
// checkpoint, and the next one succeeds.
func TestKilledCheckpointOfRunning(t *testing.T) {
	s := newStored(t)
	s.around("runc; code=$?; if needs checkpoint; then kill -9 $PPID; sleep 600; fi; exit $code")
	images := filepath.Join(s.dir, "images")
	s.start(nil)
	if err := s.runc("checkpoint", "--leave-running", "--image-path", images, s.name); err == nil {
		t.Fatal("a checkpoint succeeded that was killed")
	}
	must(t, s.mem.Check(1, limit))
	s.quiet()
	s.around("runc")
	err := s.runc("restore", "-d", "--bundle", s.bundle, "--image-path", images, s.name)
	if err == nil || !strings.Contains(err.Error(), "not sealed") {
		t.Errorf("a restore of a dump that was killed: %v", err)
	}
	must(t, s.runc("checkpoint", "--image-path", images, s.name))
	must(t, s.runc("delete", "-f", s.name))
	s.restored(images)
}

// TestUnwrittenReference: the image directory cannot be written, before the dump or only after it.
func TestUnwrittenReference(t *testing.T) {
	s := newStored(t)
	s.start(nil)
	occupied := filepath.Join(s.dir, "occupied")
	must(t, os.MkdirAll(filepath.Join(occupied, "gpucr-fs.json"), 0o700))
	must(t, os.WriteFile(filepath.Join(s.dir, "file"), nil, 0o600))
	for _, images := range []string{occupied, filepath.Join(s.dir, "file", "images")} {
		err := s.runc("checkpoint", "--image-path", images, s.name)
		if err == nil || !strings.Contains(err.Error(), "image directory") || s.status() != "running" {
			t.Fatalf("a checkpoint into %s: %v; the container is %q", images, err, s.status())
		}
	}
	must(t, s.mem.Check(1, limit))
	if all := s.checkpoints(); len(all) > 0 {
		t.Errorf("the store has %+v", all)
	}
	images := filepath.Join(s.dir, "images")
	s.around(fmt.Sprintf("runc; code=$?; if needs checkpoint; then rm -r %s; touch %s; fi; exit $code", images, images))
	err := s.runc("checkpoint", "--image-path", images, s.name)
	c := s.settled(index.Sealed)
	if err == nil || !strings.Contains(err.Error(), c.Name) {
		t.Errorf("a checkpoint without a place for its reference, %s: %v", c.Name, err)
	}
	s.around("runc")
	must(t, s.runc("delete", "-f", s.name))
	exported := filepath.Join(s.dir, "exported")
	s.run("export", s.store, c.Name, exported)
	s.restored(exported)
	must(t, s.left.Nothing())
}

// TestOddTags: what cannot be a tag is found out before the container is dumped.
func TestOddTags(t *testing.T) {
	s := newStored(t)
	s.start(map[string]string{"gpucr-fs/tags": "nightly,so/what?"})
	err := s.runc("checkpoint", "--image-path", filepath.Join(s.dir, "images"), s.name)
	if err == nil || !strings.Contains(err.Error(), "so/what?") || s.status() != "running" {
		t.Errorf("a checkpoint with an impossible tag: %v; the container is %q", err, s.status())
	}
	must(t, s.mem.Check(1, limit))
	if all := s.checkpoints(); len(all) > 0 {
		t.Errorf("the store has %+v", all)
	}
	must(t, s.left.Nothing())
}
