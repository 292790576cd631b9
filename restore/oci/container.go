package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// State is what a runtime tells of a container.
type State struct {
	ID          string            `json:"id"`
	Status      string            `json:"status"`
	PID         int               `json:"pid"`
	Bundle      string            `json:"bundle"`
	Annotations map[string]string `json:"annotations"`
}

// Ask asks the runtime for the state of the call's container.
func Ask(runtime string, c Call) (State, error) {
	var s State
	cmd := exec.Command(runtime, c.Other("state")...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("ask for container %s: %w: %s", c.ID, err, strings.TrimSpace(stderr.String()))
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("ask for container %s: %w", c.ID, err)
	}
	return s, nil
}

// named are annotations that name a container, the first that is there counts: containerd's, CRI-O's and podman's.
var named = []string{
	"gpucr-fs/name", "io.kubernetes.cri.container-name", "io.kubernetes.container.name",
	"org.opencontainers.container.name", "com.docker.compose.service",
}

// labelled gives, for a label of a checkpoint, the annotations that have its value.
var labelled = map[string][]string{
	"container.name": named,
	"pod":            {"io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"},
	"namespace":      {"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"},
	"image": {"io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName",
		"org.opencontainers.image.ref.name"},
}

// TagAnnotation holds tags for the checkpoints of a container, with commas between them.
const TagAnnotation = "gpucr-fs/tags"

func (s State) annotation(keys []string) string {
	for _, k := range keys {
		if v := s.Annotations[k]; v != "" {
			return v
		}
	}
	return ""
}

// Labels are those of a checkpoint of the container.
func (s State) Labels() map[string]string {
	labels := map[string]string{"container": s.ID}
	for label, keys := range labelled {
		if v := s.annotation(keys); v != "" {
			labels[label] = v
		}
	}
	return labels
}

// Tags are those of a checkpoint of the container.
func (s State) Tags() []string {
	return strings.FieldsFunc(s.Annotations[TagAnnotation], func(r rune) bool { return r == ',' || r == ' ' })
}

// podman, containerd and docker make IDs of longID digits, and show the first shortID of them.
const (
	longID  = 64
	shortID = 12
)

// maxName is how much of a container's name goes into that of a checkpoint, in bytes. A store takes names of 128.
const maxName = 96

// Name makes a name for a checkpoint of the container that nobody else gives.
func (s State) Name(now time.Time) string {
	name := s.annotation(named)
	if name == "" {
		name = s.ID
	}
	if len(name) == longID {
		name = name[:shortID]
	}
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}, name)
	name = strings.Trim(name[:min(len(name), maxName)], "-.")
	if name == "" {
		name = "container"
	}
	return fmt.Sprintf("%s-%s", name, now.UTC().Format("20060102T150405.000000Z"))
}

// entry is a line of a runtime's log in its format json.
type entry struct {
	Level   string    `json:"level"`
	Message string    `json:"msg"`
	Time    time.Time `json:"time"`
}

// Log adds an error to the log that the caller has named, which it shows to its user. Without one nothing is done.
// It does not wait for a reader of a pipe.
func (c Call) Log(now time.Time, message string) error {
	path := c.Global("log")
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	if c.Global("log-format") == "json" {
		err = json.NewEncoder(f).Encode(entry{Level: "error", Message: message, Time: now})
	} else {
		_, err = io.WriteString(f, fmt.Sprintf("time=%q level=error msg=%q\n", now.Format(time.RFC3339), message))
	}
	return errors.Join(err, f.Close())
}

// HostNetwork tells by its bundle, "" for this process's directory, whether a container has no network of its own.
func HostNetwork(bundle string) (bool, error) {
	text, err := readAtMost(filepath.Join(bundle, "config.json"), maxSpec)
	if err != nil {
		return false, err
	}
	var spec struct {
		Linux struct {
			Namespaces []struct{ Type string }
		}
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		return false, fmt.Errorf("%s of a container: %w", filepath.Join(bundle, "config.json"), err)
	}
	for _, n := range spec.Linux.Namespaces {
		if n.Type == "network" {
			return false, nil
		}
	}
	return true, nil
}

// maxSpec is how large a container's config.json may be, in bytes.
const maxSpec = 16 << 20
