package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpucr/gpucr-fs/restore/oci"
)

const (
	defaultConfig = "/etc/gpucr-fs/config.json"
	envPrefix     = "GPUCR_FS_"
)

// notConfigurable are flags that mean something only where they are typed.
var notConfigurable = []string{"help", "config"}

// settings is a configuration file: values by flag name, for all commands and for single ones.
type settings struct {
	file     string
	all      map[string]string
	commands map[string]map[string]string
}

// configure gives the flags that were not typed their values from the environment, else from the configuration file.
func (a *app) configure(cmd *cobra.Command) error {
	path, explicit := a.config, a.config != ""
	if !explicit {
		path = os.Getenv(envPrefix + "CONFIG")
		explicit = path != ""
	}
	if !explicit {
		path = defaultConfig
	}
	s, err := readSettings(path, explicit, cmd.Root())
	if err != nil {
		return err
	}
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed || slices.Contains(notConfigurable, f.Name) {
			return
		}
		name := envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := os.Getenv(name)
		ok := value != "" // an empty variable is one that is not set
		from := "the variable " + name
		if !ok {
			from = s.file
			if value, ok = s.commands[cmd.Name()][f.Name]; !ok {
				value, ok = s.all[f.Name]
			}
		}
		if !ok {
			return
		}
		if err := cmd.Flags().Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", from, f.Name, valueError(f, value, err)))
		}
	})
	return errors.Join(errs...)
}

// readSettings reads a configuration file; only an explicit one must be there. Names that no command knows are refused.
// A file that the caller has not named is refused where users other than root can change it: options name programs.
func readSettings(path string, explicit bool, root *cobra.Command) (settings, error) {
	s := settings{file: path, all: map[string]string{}, commands: map[string]map[string]string{}}
	if !explicit {
		switch file, err := oci.Guarded(path); {
		case errors.Is(err, fs.ErrNotExist):
			return s, nil
		case err != nil:
			return s, fmt.Errorf("configuration %s names programs that root runs, and is not used: %w", path, err)
		default:
			path = file
		}
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && !explicit {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read the configuration: %w", err)
	}
	var raw map[string]any
	if err := json.Unmarshal(text, &raw); err != nil {
		return s, fmt.Errorf("configuration %s: %w", path, err)
	}
	known := map[string]map[string]bool{"": {}}
	for _, c := range root.Commands() {
		known[c.Name()] = map[string]bool{}
		visit := func(f *pflag.Flag) {
			if !slices.Contains(notConfigurable, f.Name) {
				known[c.Name()][f.Name], known[""][f.Name] = true, true
			}
		}
		c.LocalFlags().VisitAll(visit)
		c.InheritedFlags().VisitAll(visit)
	}
	for key, v := range raw {
		if sub, ok := v.(map[string]any); ok && key != "" && known[key] != nil {
			s.commands[key] = map[string]string{}
			if err := setAll(path, s.commands[key], known[key], sub); err != nil {
				return s, err
			}
			continue
		}
		if err := setAll(path, s.all, known[""], map[string]any{key: v}); err != nil {
			return s, err
		}
	}
	return s, nil
}

func setAll(path string, into map[string]string, known map[string]bool, from map[string]any) error {
	for key, v := range from {
		if !known[key] {
			return fmt.Errorf("configuration %s: no flag is named %q", path, key)
		}
		switch v := v.(type) {
		case string, bool:
			into[key] = fmt.Sprint(v)
		case float64:
			into[key] = strings.TrimSuffix(fmt.Sprintf("%f", v), ".000000")
		case []any:
			var parts []string
			for _, p := range v {
				parts = append(parts, fmt.Sprint(p))
			}
			into[key] = strings.Join(parts, ",")
		default:
			return fmt.Errorf("configuration %s: the value of %q cannot be used", path, key)
		}
	}
	return nil
}
