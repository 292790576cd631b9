package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// mountHelperName is what mount(8) starts for the file system type gpucr-fs: this program, by that name.
const mountHelperName = "mount.gpucr-fs"

// ignored are options of fstab(5) that are for others: mount(8), systemd and the kernel.
var ignored = []string{
	"rw", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser",
	"users", "owner", "group", "exec", "noexec", "suid",
	"nosuid", "dev", "nodev", "relatime", "noatime", "nodiratime", "strictatime", "lazytime", "async",
}

// helperArgs makes of the arguments of a mount helper, SPEC DIR [-sfnvr] [-t TYPE] [-N NAMESPACE] [-o OPTIONS], those
// of this program's mount. An option that is none of fstab's is a flag of mount: checkpoint=web-1, metrics-addr=:9100.
func helperArgs(argv []string) ([]string, error) {
	args, places := []string{"mount"}, []string(nil)
	for i := 0; i < len(argv); i++ {
		arg := argv[i]
		switch {
		case arg == "-t" || arg == "-N":
			i++
		case arg == "-o" && i+1 < len(argv):
			i++
			more, err := mountOptions(argv[i])
			if err != nil {
				return nil, err
			}
			args = append(args, more...)
		case strings.HasPrefix(arg, "-o"):
			more, err := mountOptions(arg[2:])
			if err != nil {
				return nil, err
			}
			args = append(args, more...)
		case strings.HasPrefix(arg, "-"):
			if strings.Contains(arg, "f") {
				return []string{"version"}, nil // a trial: nothing is to be mounted
			}
			if strings.Contains(arg, "r") {
				args = append(args, "--read-only")
			}
		default:
			places = append(places, arg)
		}
	}
	return append(append(args, "--quiet"), places...), nil
}

func mountOptions(list string) (args []string, err error) {
	for o := range strings.SplitSeq(list, ",") {
		name, value, has := strings.Cut(o, "=")
		switch {
		case o == "" || slices.Contains(ignored, name) || strings.HasPrefix(name, "x-") ||
			strings.HasPrefix(name, "X-") ||
			name == "comment":
		case name == "ro":
			args = append(args, "--read-only")
		case name == "remount":
			return nil, usage(fmt.Errorf("a mount of a store cannot be changed"), "unmount it and mount it again")
		case name == "foreground":
			return nil, usage(fmt.Errorf("there is no mount option %q", o), "")
		case has:
			args = append(args, "--"+strings.ReplaceAll(name, "_", "-")+"="+value)
		default:
			args = append(args, "--"+strings.ReplaceAll(name, "_", "-"))
		}
	}
	return args, nil
}

// mountHelperCmd is mount by the name of a mount helper, with the arguments of one.
func (a *app) mountHelperCmd() *cobra.Command {
	return &cobra.Command{
		Use:                mountHelperName,
		Short:              "mount a store (started by mount(8))",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, argv []string) error {
			args, err := helperArgs(argv)
			if err != nil {
				return err
			}
			// What this program starts is itself, by its own name.
			self, err := os.Executable()
			if err != nil {
				return err
			}
			os.Args[0] = filepath.Join(filepath.Dir(self), cmd.Root().Name())
			root := cmd.Root()
			root.SetArgs(args)
			return root.ExecuteContext(cmd.Context())
		},
	}
}
