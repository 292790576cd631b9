package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpucr/gpucr-fs/restore/criuimg"
)

// elsewhere is how copies come by addresses of their own.
const elsewhere = "restore it in another network namespace: ip netns exec NAME gpucr-fs restore --own-pids ..."

// contested refuses a restore in a pid namespace of its own that would take from somebody what there is only once.
// criu itself removes the path of a unix socket that a live process listens on.
func (r *restoring) contested(images string) error {
	if !r.own {
		return nil
	}
	a, err := criuimg.LoadAddresses(os.DirFS(images))
	if err != nil {
		return nil // what cannot be read CRIU tells of
	}
	if r.copy > 1 {
		if all := append(a.Sockets, a.Ports...); len(all) > 0 {
			hint := elsewhere
			if len(a.Sockets) > 0 {
				hint = "a unix socket's path is on a disk that all copies share: only one of them can have it"
			}
			return &codeError{exitError, hint, fmt.Errorf("the first copy has its sockets: %s", some(all))}
		}
		return nil
	}
	var live []string
	bound := boundSockets()
	for _, path := range a.Sockets {
		if bound[path] {
			live = append(live, path)
		}
	}
	if len(live) > 0 {
		return &codeError{exitError, "end the process that listens there: ss -lxp shows it",
			fmt.Errorf("somebody else has unix sockets of the checkpoint: %s", some(live))}
	}
	return nil
}

// some shows the first of a list.
func some(all []string) string {
	const shown = 5
	text := strings.Join(all[:min(shown, len(all))], ", ")
	if n := len(all) - shown; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// boundSockets are the paths that unix sockets of this network namespace are bound to; see proc_net(5).
func boundSockets() map[string]bool {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil
	}
	bound := map[string]bool{}
	const before = 7 // fields before the path
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > before {
			bound[strings.Join(slices.Clone(f[before:]), " ")] = true
		}
	}
	return bound
}
