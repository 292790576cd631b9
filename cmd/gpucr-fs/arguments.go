package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// suggestWithin is how many letters a name may differ from the one that is suggested instead.
const suggestWithin = 2

// positional checks the arguments of a command against its usage line, so that an error gives the name of what is
// missing.
func positional(cmd *cobra.Command, args []string) error {
	return checkArguments(cmd, usageNames(cmd.Use), args)
}

// usageNames gives the names of the arguments in a usage line, as they stand there: NAME, [NAME] or [NAME...].
func usageNames(use string) []string {
	names := strings.Fields(use)[1:]
	flag := func(n string) bool { return strings.HasPrefix(strings.TrimLeft(n, "[{"), "-") }
	if end := slices.IndexFunc(names, flag); end >= 0 {
		names = names[:end]
	}
	return names
}

// checkArguments refuses arguments that are fewer or more than names.
func checkArguments(cmd *cobra.Command, names, args []string) error {
	hint := "usage: " + strings.TrimSuffix(cmd.UseLine(), " [flags]")
	many := len(names) > 0 && strings.HasSuffix(names[len(names)-1], "...]")
	var missing []string
	for i, name := range names {
		if i >= len(args) && !strings.HasPrefix(name, "[") {
			missing = append(missing, name)
		}
	}
	switch {
	case len(missing) == 1:
		return usage(fmt.Errorf("%s is missing", missing[0]), hint)
	case len(missing) > 1:
		last := len(missing) - 1
		return usage(fmt.Errorf("%s and %s are missing", strings.Join(missing[:last], ", "), missing[last]), hint)
	case len(args) > len(names) && !many:
		return usage(fmt.Errorf("unexpected argument %q", args[len(names)]), hint)
	}
	return nil
}

// subcommand refuses a name that is no command, and suggests those like it.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = suggestWithin
	hint := didYouMean(cmd.SuggestionsFor(args[0]))
	if hint == "" {
		hint = cmd.CommandPath() + " --help shows the commands"
	}
	return usage(fmt.Errorf("unknown command %q", args[0]), hint)
}

// flagError explains a flag that cannot be understood. An unknown one gets those like it suggested.
func flagError(cmd *cobra.Command, err error) error {
	hint := cmd.CommandPath() + " --help shows its flags"
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		err = fmt.Errorf("--%s: %w", invalid.GetFlag().Name, valueError(invalid.GetFlag(), invalid.GetValue(), err))
	}
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		if m := didYouMean(flagsLike(cmd, unknown.GetSpecifiedName())); m != "" {
			hint = m
		} else if strings.Contains(cmd.Use, "CRIU OPTIONS") {
			hint += "; options for criu follow --"
		}
	}
	return usage(err, hint)
}

// valueError says what is wrong with the value of a flag. What the library says of numbers and times names functions
// of Go.
func valueError(f *pflag.Flag, value string, err error) error {
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		err = invalid.Unwrap()
	}
	switch f.Value.Type() {
	case "int", "int32", "int64", "uint", "uint32", "uint64", "float64":
		return fmt.Errorf("%q is not a number", value)
	case "bool":
		return fmt.Errorf("%q is neither true nor false", value)
	case "duration":
		return fmt.Errorf("%q is not a time like 90s or 2h30m", value)
	}
	return err
}

// flagsLike gives the flags whose names are like name. The library compares names of commands only, so it gets them as
// such.
func flagsLike(cmd *cobra.Command, name string) []string {
	flags := &cobra.Command{SuggestionsMinimumDistance: suggestWithin}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	var like []string
	for _, f := range flags.SuggestionsFor(name) {
		like = append(like, "--"+f)
	}
	return like
}

func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(names, " or ") + "?"
}
