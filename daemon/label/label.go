// Package label tells the labels that checkpoints get by themselves, and selects checkpoints by labels.
//
// What CRIU's images tell of the first process becomes labels when a checkpoint is sealed, whichever way it came in;
// the program that dumps adds what only the host or the process itself knows. There are no locks.
package label

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gpucr/gpucr-fs/daemon/inspect"
	"github.com/gpucr/gpucr-fs/index"
	"github.com/gpucr/gpucr-fs/restore/criuimg"
	"github.com/gpucr/gpucr-fs/restore/procfs"
)

// Keys of the labels that checkpoints get by themselves.
const (
	Host    = "host"    // where the process ran
	Command = "command" // its command line, cut
	User    = "user"    // who it ran as: a name, or a number where this machine knows none
	Started = "started" // when it was started, RFC 3339; of checkpoints made by gpucr-fs dump
)

// maxCommand cuts command lines in labels, in bytes.
const maxCommand = 512

// OfImages gives what CRIU's images tell of the first process: [index.Options.Labels]. Images that cannot be read
// tell nothing; info says why.
func OfImages(fsys fs.FS) map[string]string {
	dir, ok := inspect.Find(fsys)
	if !ok {
		return nil
	}
	sub, err := fs.Sub(fsys, dir)
	if err != nil {
		return nil
	}
	o, err := criuimg.FindOrigin(sub)
	if err != nil {
		return nil
	}
	labels := map[string]string{User: userName(o.UID)}
	setLabel(labels, Host, o.Host)
	setLabel(labels, Command, o.Command)
	return labels
}

// OfHost gives the label of what is dumped on this machine.
func OfHost() map[string]string {
	labels := map[string]string{}
	if name, err := os.Hostname(); err == nil {
		setLabel(labels, Host, name)
	}
	return labels
}

// OfProcess gives the labels of a checkpoint that process pid is about to be dumped into. A process that cannot be
// looked at has fewer.
func OfProcess(pid int) map[string]string {
	labels := OfHost()
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		setLabel(labels, Command, string(bytes.TrimRight(b, "\x00")))
	}
	if at, ok := started(pid); ok {
		labels[Started] = at.UTC().Format(time.RFC3339)
	}
	return labels
}

// started gives when a process was started: its stat file counts hundredths of a second since boot, /proc/stat tells
// when that was (proc(5)).
func started(pid int) (time.Time, bool) {
	const startTime = 22 - 3 // the field's number; Stat begins with the third
	fields := procfs.Stat(fmt.Sprintf("/proc/%d/stat", pid))
	if len(fields) <= startTime {
		return time.Time{}, false
	}
	ticks, err := strconv.ParseInt(fields[startTime], 10, 64)
	b, errStat := os.ReadFile("/proc/stat")
	_, after, ok := strings.Cut(string(b), "\nbtime ")
	if err != nil || errStat != nil || !ok {
		return time.Time{}, false
	}
	line, _, _ := strings.Cut(after, "\n")
	boot, err := strconv.ParseInt(line, 10, 64)
	return time.Unix(boot+ticks/100, 0), err == nil
}

// setLabel sets a label to a value that somebody else chose: what cannot be printed becomes a space, and it is cut.
func setLabel(labels map[string]string, key, value string) {
	value = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(value, "?"))
	if len(value) > maxCommand {
		value = strings.ToValidUTF8(value[:maxCommand], "")
	}
	if value = strings.TrimSpace(value); value != "" {
		labels[key] = value
	}
}

func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// Filter selects checkpoints by labels: "key=value" by value, "key" by having one. All must hold.
type Filter []string

func (f Filter) Matches(labels map[string]string) bool {
	return !slices.ContainsFunc(f, func(want string) bool {
		key, value, exact := strings.Cut(want, "=")
		got, has := labels[key]
		return !has || exact && got != value
	})
}

// Parse reads labels written key=value. An empty value takes a label away.
func Parse(args []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, a := range args {
		key, value, ok := strings.Cut(a, "=")
		if !ok {
			return nil, &index.Error{
				Class: index.Invalid,
				Op:    "label",
				Err:   fmt.Errorf("%.80q has no value", a),
				Hint:  "write key=value; key= takes the label away",
			}
		}
		if err := index.ValidLabel(key, value); err != nil {
			return nil, err
		}
		labels[key] = value
	}
	return labels, nil
}

// Extra gives the labels that no process has by itself, as key=value, by key.
func Extra(labels map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if k != Host && k != User && k != Command && k != Started {
			out = append(out, k+"="+labels[k])
		}
	}
	return out
}
