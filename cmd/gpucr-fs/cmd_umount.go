package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
)

func (a *app) umountCmd() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "umount DIR",
		Short: "unmount a store and wait until everything is flushed",
		Long: `Umount unmounts DIR and returns when everything is written to disk. After the last mount it also waits
until the daemon has ended and the store is free, unless restores in progress or gpucr-fs serve keep the daemon.
Before that it waits for uploads to the remote store, and reports what is not uploaded yet. Umount refuses while the
mount is in use. If it unmounts while a checkpoint is still incomplete, the exit code is 3. Umount also removes mounts
that a killed daemon left.`,
		Example: "  gpucr-fs umount /images",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := client.MountPoint(args[0])
			if err != nil {
				return err
			}
			p := a.progress("umount")
			res, err := client.UnmountAt(cmd.Context(), dir, force, p.tell)
			p.close()
			if err != nil {
				return err
			}
			if err := a.done(res, func(w io.Writer) {
				switch {
				case res.Stale:
					fmt.Fprintf(w, "cleared the dead mount at %s\n", dir)
				case res.Last:
					fmt.Fprintf(w, "unmounted %s; the daemon is gone\n", dir)
				default:
					fmt.Fprintf(w, "unmounted %s\n", dir)
				}
				if len(res.Lacking) > 0 {
					fmt.Fprintf(w, "not in the remote store yet: %s; gpucr-fs sync %s takes them there\n",
						strings.Join(res.Lacking, ", "), res.Store)
				}
			}); err != nil || len(res.Unfinished) == 0 {
				return err
			}
			return &codeError{
				exitPartial,
				"gpucr-fs gc removes it; to keep one, seal it before you unmount (gpucr-fs seal)",
				fmt.Errorf("unmounted, but a checkpoint was not complete: %s", strings.Join(res.Unfinished, "; ")),
			}
		},
	}
	c.Flags().BoolVar(&force, "force", false, "unmount even if it is in use; its users get errors")
	return c
}
