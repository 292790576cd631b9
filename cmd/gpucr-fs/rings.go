package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/pflag"

	"github.com/gpucr/gpucr-fs/cuda"
	"github.com/gpucr/gpucr-fs/park"
	"github.com/gpucr/gpucr-fs/park/inject"
)

// addParkRings adds the option that lets idle rings be parked.
func addParkRings(f *pflag.FlagSet, to *bool) {
	f.BoolVar(to, "park-rings", false,
		"remove idle io_uring rings for the dump; the processes make them again before they go on (Linux 6.9 or newer)")
}

// ringsImage is a file beside criu's images that tells which processes make io_uring rings anew by themselves.
const ringsImage = "gpucr-rings.json"

// idle tells why the io_uring rings of a process cannot be parked.
func idle(root, pid int) error {
	family, err := cuda.Tree(root)
	if err != nil {
		return err
	}
	return park.Idle(pid, family)
}

// park takes the rings from the processes that the preflight has found with them. The function that it gives, always,
// lets them have rings again; wait: and waits for that.
func (d *dumping) park(images string) (func(wait bool) error, error) {
	var all []*park.Parked
	unpark := func(wait bool) error {
		errs := make([]error, len(all))
		var wg sync.WaitGroup
		for i, p := range all {
			wg.Go(func() {
				if wait && !d.args.Has("leave-stopped") {
					errs[i] = p.Unpark()
				} else {
					errs[i] = p.LetGo()
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	if len(d.rings) == 0 {
		return unpark, nil
	}
	family, err := cuda.Tree(d.pid)
	if err != nil {
		return unpark, err
	}
	var notes []park.Note
	for _, pid := range d.rings {
		p, err := park.Park(pid, family, inject.Options{})
		if errors.Is(err, inject.ErrGone) {
			continue
		}
		if err != nil {
			return unpark, err
		}
		all, notes = append(all, p), append(notes, p.Note)
	}
	text, err := json.Marshal(notes)
	if err != nil {
		return unpark, err
	}
	return unpark, os.WriteFile(filepath.Join(images, ringsImage), append(text, '\n'), 0o644)
}

// readRings gives what park wrote, if this machine lets the processes have their rings.
func readRings(images string) (notes []park.Note, err error) {
	text, err := os.ReadFile(filepath.Join(images, ringsImage))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &notes)
	}
	for _, n := range notes {
		if err == nil {
			err = n.Possible()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ringsImage, err)
	}
	return notes, nil
}

// ringsBack waits until the restored processes have their rings.
func (r *restoring) ringsBack(root int, notes []park.Note) error {
	if len(notes) == 0 || r.args.Has("leave-stopped") {
		return nil
	}
	pids, err := cuda.Tree(root)
	if err != nil {
		return err
	}
	for _, n := range notes {
		found := false
		for _, pid := range pids {
			if park.Innermost(pid) == n.PID {
				found = true
				if err := n.Wait(pid); err != nil {
					return err
				}
			}
		}
		if !found {
			return fmt.Errorf("process %d, which has io_uring rings, was not restored", n.PID)
		}
	}
	return nil
}
