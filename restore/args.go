package restore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Args are a user's options for CRIU.
type Args struct {
	// Work is the value of --work-dir, "" where there is none.
	Work string
	// LeaveRunning tells that --leave-running was among them.
	LeaveRunning bool

	lines   []string // of a configuration file of CRIU's
	names   []string // of the options in lines
	inherit []inherited
	bareLog map[int]string // of lines, those that say a log's name alone, with the name
}

// inherited is a descriptor of this process that CRIU is to have.
type inherited struct {
	fd  int
	key string
}

// short gives the long name of CRIU's short options, and whether they take a value (criu/config.c).
var short = map[byte]struct {
	name  string
	value bool
}{
	'd': {"restore-detached", false}, 'S': {"restore-sibling", false}, 's': {"leave-stopped", false},
	'R': {"leave-running", false}, 'j': {"shell-job", false},
	'l': {"file-locks", false}, 'D': {"images-dir", true}, 'o': {"log-file", true}, 'r': {"root", true},
	't': {"tree", true}, 'J': {"join-ns", true},
	'W': {"work-dir", true}, 'L': {"libdir", true}, 'M': {"ext-mount-map", true}, 'x': {"ext-unix-sk", true},
	'v': {"verbosity", true},
}

// optional are options whose value, where there is one, is part of the same argument.
var optional = []string{"ext-unix-sk", "verbosity", "cpu-cap", "manage-cgroups"}

// paths are options whose value is a path; CRIU changes its working directory before it uses them.
var paths = []string{"log-file", "root", "libdir", "pidfile", "action-script", "cgroup-props-file", "cgroup-yard",
	"config", "prev-images-dir"}

// ours are options that have another place on gpucr-fs's own command line, or none.
var ours = map[string]string{
	"images-dir": "the store is the image directory", "tree": "use gpucr-fs dump -t PID",
	"stream":      "images go to the store",
	"page-server": "images go to the store", "exec-cmd": "run the command after gpucr-fs restore",
	"config":          "put the options after --",
	"restore-sibling": "gpucr-fs runs criu, and would be the parent of the processes, but ends",
}

// ParseArgs takes the options that a user wants CRIU to have, as on CRIU's own command line.
func ParseArgs(args []string) (Args, error) {
	var a Args
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case strings.HasPrefix(arg, "--") && len(arg) > 2:
			name, value, has := strings.Cut(arg[2:], "=")
			if !has && !slices.Contains(optional, name) && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				value, has, args = args[0], true, args[1:]
			}
			if err := a.add(name, value, has); err != nil {
				return a, err
			}
		case strings.HasPrefix(arg, "-") && len(arg) > 1:
			var err error
			if args, err = a.addShort(arg[1:], args); err != nil {
				return a, err
			}
		default:
			return a, fmt.Errorf("criu takes no argument %q", arg)
		}
	}
	return a, a.placeLog()
}

// placeLog settles where a log is whose name alone was given: in the user's work directory, where criu looks for it,
// else in the current one. A private work directory goes, with all that is in it, when CRIU is done.
func (a *Args) placeLog() (err error) {
	if a.Work != "" {
		return nil
	}
	for i, name := range a.bareLog {
		if name, err = filepath.Abs(name); err != nil {
			return err
		}
		if a.lines[i], err = configLine("log-file", name, true); err != nil {
			return err
		}
	}
	return nil
}

// addShort takes a group of short options, and the value of the last from rest.
func (a *Args) addShort(group string, rest []string) ([]string, error) {
	for group != "" {
		c := group[0]
		o, ok := short[c]
		if !ok {
			return nil, fmt.Errorf("criu has no option -%c", c)
		}
		group = group[1:]
		value := ""
		if o.value {
			value, group = group, ""
			switch {
			case c == 'v' && strings.Trim(value, "v") == "": // -vvv
				if value != "" {
					value = strconv.Itoa(len(value) + 1)
				}
			case value == "" && !slices.Contains(optional, o.name):
				if len(rest) == 0 {
					return nil, fmt.Errorf("criu's option -%c needs a value", c)
				}
				value, rest = rest[0], rest[1:]
			}
		}
		if err := a.add(o.name, value, o.value && value != ""); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

func (a *Args) add(name, value string, has bool) error {
	if hint, ok := ours[name]; ok {
		return fmt.Errorf("criu's --%s cannot be given here: %s", name, hint)
	}
	if strings.ContainsAny(name+value, "\n\x00") || name == "" || strings.ContainsAny(name, " \t\"#") {
		return fmt.Errorf("criu has no option %q", "--"+name)
	}
	switch name {
	case "restore-detached", "daemon", "lazy-pages":
		return nil // always so
	case "leave-running":
		a.LeaveRunning = true
		return nil
	case "work-dir":
		if value == "" {
			return errors.New("criu's option --work-dir needs a value")
		}
		var err error
		a.Work, err = filepath.Abs(value)
		return err
	case "inherit-fd":
		var i inherited
		if _, err := fmt.Sscanf(value, "fd[%d]:", &i.fd); err != nil || i.fd < 0 {
			return fmt.Errorf("criu's --inherit-fd takes fd[N]:KEY, not %q", value)
		}
		_, i.key, _ = strings.Cut(value, ":")
		a.inherit = append(a.inherit, i)
		return nil
	}
	if has && slices.Contains(paths, name) {
		abs, err := filepath.Abs(value)
		if err != nil {
			return err
		}
		if name != "log-file" || strings.Contains(value, "/") {
			value = abs
		} else if a.bareLog == nil {
			a.bareLog = map[int]string{len(a.lines): value}
		} else {
			a.bareLog[len(a.lines)] = value
		}
	}
	line, err := configLine(name, value, has)
	if err != nil {
		return err
	}
	a.lines, a.names = append(a.lines, line), append(a.names, name)
	return nil
}

// configLine writes an option as CRIU's configuration files have it.
func configLine(name, value string, has bool) (string, error) {
	switch {
	case !has:
		return name, nil
	case !strings.ContainsAny(value, " \t"):
		return name + "=" + value, nil
	case strings.Contains(value, "#") || strings.HasSuffix(value, `\`):
		return "", fmt.Errorf("criu's configuration cannot express the value %q of --%s", value, name)
	}
	return name + ` "` + strings.ReplaceAll(value, `"`, `\"`) + `"`, nil
}

// Has tells whether an option was given.
func (a *Args) Has(name string) bool { return slices.Contains(a.names, name) }

// Set gives an option a value unless the user did.
func (a *Args) Set(name, value string) error {
	if a.Has(name) {
		return nil
	}
	return a.add(name, value, true)
}

// Value gives the value of an option that was given last, "" without one.
func (a *Args) Value(name string) string {
	if all := a.Values(name); len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// Values gives the values of an option in the order they were given.
func (a *Args) Values(name string) (all []string) {
	for i, line := range a.lines {
		if a.names[i] != name {
			continue
		}
		if v, ok := strings.CutPrefix(line, name+"="); ok {
			all = append(all, v)
		} else if v, ok := strings.CutPrefix(line, name+` "`); ok { // see configLine
			all = append(all, strings.ReplaceAll(strings.TrimSuffix(v, `"`), `\"`, `"`))
		}
	}
	return all
}

// clone makes a copy that can be added to.
func (a Args) clone() Args {
	a.lines, a.names = slices.Clip(a.lines), slices.Clip(a.names)
	return a
}

// Copy gives the options for one of several runs: its log has a file of its own, with the number at its end.
func (a Args) Copy(number int) Args {
	a = a.clone()
	if log := a.Take("log-file"); log != "" {
		a.line("log-file", fmt.Sprintf("%s.%d", log, number)) // it could be written before
	}
	return a
}

// line adds an option that CRIU gets another way as a rule.
func (a *Args) line(name, value string) error {
	line, err := configLine(name, value, true)
	a.lines, a.names = append(a.lines, line), append(a.names, name)
	return err
}

// Take removes an option that was given, and returns its value; "" where it was not.
func (a *Args) Take(name string) string {
	value := a.Value(name)
	for i := len(a.names) - 1; i >= 0; i-- {
		if a.names[i] == name {
			a.lines = slices.Delete(slices.Clone(a.lines), i, i+1)
			a.names = slices.Delete(slices.Clone(a.names), i, i+1)
		}
	}
	return value
}

// write makes the configuration file.
func (a *Args) write(path string) error {
	return os.WriteFile(path, []byte(strings.Join(a.lines, "\n")+"\n"), 0o600)
}
