package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/label"
	"github.com/gpucr/gpucr-fs/daemon/selection"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/index"
)

func (a *app) lsCmd() *cobra.Command {
	var req service.ListRequest
	var fast, remote bool
	c := &cobra.Command{
		Use:   "ls STORE [NAME]",
		Short: "list checkpoints, or the files of one",
		Long: `Ls lists the checkpoints of a store, oldest first or as --sort says. LOGICAL is the sum of the sizes
of a checkpoint's files. It is made of ZERO (zero pages, which are not stored), UNIQUE (bytes that only this
checkpoint has) and SHARED (bytes that others have too). STORED is what its chunks take on disk, compressed,
including shared ones. --json adds what the processes had on AMD GPUs. With a remote store, REMOTE says whether a
checkpoint is local, uploading or durable (in the bucket, as far as this store knows). LABELS tell where a checkpoint
comes from: host, user and command of its first process, and labels that were added. With NAME (a name, a tag or the
beginning of an ID) ls lists the files of that checkpoint. Files in the store that belong to no checkpoint are
reported on stderr.`,
		Example: "  gpucr-fs ls store/\n" +
			"  gpucr-fs ls --json --tag golden store/\n" +
			"  gpucr-fs ls store/ web-1\n" +
			"  gpucr-fs ls --label host=node-7 --label team --sort stored --reverse store/\n" +
			"  gpucr-fs ls --latest 1 --label user=www-data store/",
		Args: positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			if remote {
				return a.lsRemote(cmd.Context(), args[0])
			}
			if len(args) == 2 {
				return a.lsFiles(cmd.Context(), args[0], args[1])
			}
			if fast {
				return a.lsNames(cmd.Context(), args[0], req.Select)
			}
			res, err := do(cmd.Context(), a, args[0], "", service.List, req)
			if err != nil {
				return err
			}
			a.warnAside(res.SetAside)
			list, places := make([]index.Info, len(res.Checkpoints)), make([]string, len(res.Checkpoints))
			for i, l := range res.Checkpoints {
				list[i], places[i] = l.Info, l.Place
			}
			return errors.Join(
				a.print(res, func(w io.Writer) { checkpointTable(w, list, places) }),
				damageOf("ls", list),
			)
		},
	}
	f := c.Flags()
	f.StringVar(&req.Tag, "tag", "", "only the checkpoint of this `TAG`")
	f.StringArrayVar(
		(*[]string)(&req.Labels), "label", nil,
		"only those with the label `KEY` or KEY=VALUE; given several times, all must match",
	)
	f.StringVar(&req.Sort, "sort", "", "`ORDER`: "+strings.Join(selection.SortKeys(), ", ")+" (default created)")
	f.BoolVar(&req.Reverse, "reverse", false, "in descending order")
	f.IntVar(&req.Latest, "latest", 0, "only the `N` sealed last, of those selected")
	c.Flags().BoolVar(&remote, "remote", false, "list the checkpoints of the remote store")
	c.Flags().BoolVar(&fast, "fast", false, "do not count unique, shared and stored bytes")
	return c
}

// damageOf gives an error that names the checkpoints which could not be counted; nil where there are none.
func damageOf(op string, list []index.Info) error {
	var names []string
	why := ""
	for _, i := range list {
		if i.Damage != "" {
			names = append(names, i.Name)
			why = i.Damage
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &index.Error{
		Class: index.Corrupt,
		Op:    op,
		Err:   fmt.Errorf("%s could not be counted: %s", strings.Join(names, ", "), why),
		Hint:  "gpucr-fs repair may bring back what is missing; gpucr-fs rm removes what stays damaged",
	}
}

// checkpointTable shows checkpoints. Places, where they are told, say where each is: in a column of its own, in a store
// with a remote store.
func checkpointTable(w io.Writer, list []index.Info, places []string) {
	column := remoteColumn(places)
	fmt.Fprintln(w, "NAME\tSTATE"+column("REMOTE", -1)+
		"\tSEALED\tFILES\tLOGICAL\tZERO\tUNIQUE\tSHARED\tSTORED\tPARENT\tTAGS\tHOST\tUSER\tCOMMAND\tLABELS")
	for n, i := range list {
		fmt.Fprintf(
			w, "%s\t%s%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.State, column("", n), when(i.SealedAt),
			i.Files, size(i.Logical), size(i.Zero), size(i.Unique), size(i.Shared), size(i.Stored), dash(i.Parent),
			dash(strings.Join(i.Tags, ",")), labelColumns(i.Labels),
		)
	}
}

func (a *app) lsNames(ctx context.Context, dir string, q selection.Select) error {
	res, err := do(ctx, a, dir, "", service.Names, service.NamesRequest{Select: q})
	if err != nil {
		return err
	}
	a.warnAside(res.SetAside)
	places := make([]string, len(res.Checkpoints))
	for i, c := range res.Checkpoints {
		places[i] = c.Place
	}
	column := remoteColumn(places)
	return a.print(res, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tSTATE"+column("REMOTE", -1)+
			"\tSEALED\tFILES\tLOGICAL\tZERO\tPARENT\tTAGS\tHOST\tUSER\tCOMMAND\tLABELS")
		for n, i := range res.Checkpoints {
			fmt.Fprintf(
				w, "%s\t%s%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.State, column("", n), when(i.SealedAt),
				i.Files, size(i.Logical), size(i.Zero), dash(i.Parent), dash(strings.Join(i.Tags, ",")),
				labelColumns(i.Labels),
			)
		}
	})
}

// remoteColumn gives what shows a column of a table with a remote store, and nothing where no place is told: its head,
// or the place of the n-th checkpoint.
func remoteColumn(places []string) func(head string, n int) string {
	told := slices.ContainsFunc(places, func(p string) bool { return p != "" })
	return func(head string, n int) string {
		if !told {
			return ""
		}
		if n >= 0 {
			head = dash(places[n])
		}
		return "\t" + head
	}
}

// commandWidth is what a table shows of a command line, in characters.
const commandWidth = 32

// labelColumns gives the columns HOST, USER, COMMAND and LABELS, which holds the others.
func labelColumns(labels map[string]string) string {
	command := []rune(labels["command"])
	if len(command) > commandWidth {
		command = append(command[:commandWidth-1], '…')
	}
	return strings.Join([]string{
		dash(labels["host"]), dash(labels["user"]), dash(string(command)), dash(strings.Join(label.Extra(labels), ",")),
	}, "\t")
}

func (a *app) lsFiles(ctx context.Context, dir, ref string) error {
	res, err := do(ctx, a, dir, "", service.Entries, service.EntriesRequest{Ref: ref})
	if err != nil {
		return err
	}
	return a.print(res, func(w io.Writer) {
		fmt.Fprintln(w, "MODE\tSIZE\tZERO\tMODIFIED\tPATH")
		for _, e := range res.Entries {
			name := shown(e.Path)
			if e.Target != "" {
				name += " -> " + shown(e.Target)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", e.Mode, size(e.Size), size(e.Zero), when(e.ModTime), name)
		}
	})
}
