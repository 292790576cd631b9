package oci

import (
	"slices"
	"strings"
)

// Commands that go through a store.
const (
	Checkpoint = "checkpoint"
	Restore    = "restore"
)

// Delete removes a container. It does not go through a store.
const Delete = "delete"

// valued are the options of runc and crun that take a value, before the command and after checkpoint and restore.
var valued = []string{
	"root", "log", "log-format", "log-level", "criu", "rootless", "cgroup-manager",
	"image-path", "work-path", "parent-path", "status-fd", "page-server", "manage-cgroups-mode", "empty-ns",
	"console-socket", "bundle", "b", "pid-file", "preserve-fds", "lsm-profile", "lsm-mount-context", "network-lock",
}

// others are options by which checkpoint and restore do something that is not for a store: runs without a result, steps
// of a migration, and dumps that another one builds on.
var others = []string{"help", "h", "pre-dump", "parent-path", "page-server", "lazy-pages", "status-fd", "auto-dedup"}

// long gives the names of short options.
var long = map[string]string{"b": "bundle", "d": "detach", "f": "force"}

// option is one of a command line.
type option struct {
	name  string
	value string
	args  []string // as they stood there
}

// Call is a call of an OCI runtime.
type Call struct {
	// Command is the runtime's command, "" where there is none.
	Command string
	// ID names the container of a checkpoint, restore or delete, "" where that is not clear.
	ID string

	global []option
	own    []option
	rest   []string // arguments
}

// Parse reads a command line, without the program's name.
func Parse(args []string) Call {
	var c Call
	c.global, args = options(args)
	if len(args) == 0 || args[0] == "" {
		c.rest = args
		return c
	}
	c.Command, args = args[0], args[1:]
	if c.Command != Checkpoint && c.Command != Restore && c.Command != Delete {
		c.rest = args
		return c
	}
	// crun takes options after the container's name, too.
	for len(args) > 0 {
		var more []option
		more, args = options(args)
		c.own = append(c.own, more...)
		if len(args) > 0 && strings.HasPrefix(args[0], "-") { // as in "--": what follows is not looked at
			c.rest = append(c.rest, args...)
			return c
		}
		if len(args) > 0 {
			c.rest, args = append(c.rest, args[0]), args[1:]
		}
	}
	if len(c.rest) == 1 {
		c.ID = c.rest[0]
	}
	return c
}

// options takes the options that args begin with.
func options(args []string) (all []option, rest []string) {
	for len(args) > 0 {
		name, isOption := strings.CutPrefix(args[0], "-")
		name = strings.TrimPrefix(name, "-") // as the library of runc does
		if !isOption || name == "" {
			return all, args
		}
		o := option{args: args[:1]}
		var has bool
		o.name, o.value, has = strings.Cut(name, "=")
		if !has && slices.Contains(valued, o.name) && len(args) > 1 {
			o.value, o.args = args[1], args[:2]
		}
		args = args[len(o.args):]
		if l := long[o.name]; l != "" {
			o.name = l
		}
		all = append(all, o)
	}
	return all, nil
}

// find gives the option that counts: the last one of its name.
func find(all []option, name string) (option, bool) {
	for _, o := range slices.Backward(all) {
		if o.name == name {
			return o, true
		}
	}
	return option{}, false
}

// Has tells whether an option of the command is on.
func (c Call) Has(name string) bool {
	o, ok := find(c.own, name)
	return ok && o.value != "false"
}

// Value gives the value of an option of the command, "" without one.
func (c Call) Value(name string) string {
	o, _ := find(c.own, name)
	return o.value
}

// Global gives the value of an option before the command, "" without one.
func (c Call) Global(name string) string {
	o, _ := find(c.global, name)
	return o.value
}

// Ours tells whether this is a checkpoint or restore that can go through a store.
func (c Call) Ours() bool {
	if c.Command == Delete || c.ID == "" || c.Value("image-path") == "" {
		return false
	}
	return !slices.ContainsFunc(others, c.Has)
}

// With gives the call with another value of an option, which takes the place of all before; "" makes it one without a
// value.
func (c Call) With(name, value string) Call {
	c.own = slices.DeleteFunc(slices.Clone(c.own), func(o option) bool { return o.name == name })
	o := option{name: name, value: value, args: []string{"--" + name}}
	if value != "" {
		o.args = append(o.args, value)
	}
	c.own = append(c.own, o)
	return c
}

// Args gives the command line.
func (c Call) Args() []string {
	args := written(c.global)
	if c.Command != "" {
		args = append(append(args, c.Command), written(c.own)...)
	}
	return append(args, c.rest...)
}

// Other gives the command line of another command for the same container, with the same options before the command
// but for the log: it is the caller's.
func (c Call) Other(command string, options ...string) []string {
	global := slices.DeleteFunc(slices.Clone(c.global), func(o option) bool { return o.name == "log" })
	return append(append(append(written(global), command), options...), c.ID)
}

func written(all []option) (args []string) {
	for _, o := range all {
		args = append(args, o.args...)
	}
	return args
}
