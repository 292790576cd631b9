package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon"
)

func (a *app) umountCmd() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "umount DIR",
		Short: "unmount a store and wait until everything is flushed",
		Long: `Umount takes the mount at DIR away and returns when everything is flushed. If it was the daemon's last mount, it returns when the daemon is gone and the
store is free, unless restores are in progress, which keep the daemon. A mount in use is refused. What a killed daemon left is cleared away.`,
		Example: "  gpucr-fs umount /images",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := daemon.MountPoint(args[0])
			if err != nil {
				return err
			}
			res, err := daemon.UnmountAt(cmd.Context(), dir, force)
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				switch {
				case res.Stale:
					fmt.Fprintf(w, "cleared the dead mount at %s\n", dir)
				case res.Last:
					fmt.Fprintf(w, "unmounted %s; the daemon is gone\n", dir)
				default:
					fmt.Fprintf(w, "unmounted %s\n", dir)
				}
			})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "take it away from under its users, who get errors")
	return c
}
