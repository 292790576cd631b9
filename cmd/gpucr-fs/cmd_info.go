package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/inspect"
	"github.com/gpucr/gpucr-fs/daemon/service"
)

func (a *app) infoCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "info STORE NAME",
		Short: "tell what a checkpoint holds: processes, memory, files",
		Long: `Info reads the CRIU images of a checkpoint. It shows the process tree with the memory of each process,
how long the dump took, the GPUs with their buffer objects and queues, and how much of each file and buffer object is
shared with other checkpoints. NAME is a name, a tag or the beginning of an ID.`,
		Example: "  gpucr-fs info store/ web-1\n  gpucr-fs info --json store/ web-1",
		Args:    positional,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := do(cmd.Context(), a, args[0], "", service.Info, service.InfoRequest{Ref: args[1]})
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) { printInfo(w, res) })
		},
	}
}

func printInfo(w io.Writer, res service.InfoResult) {
	i := res.Checkpoint
	fmt.Fprintf(
		w, "name\t%s\nid\t%s\nsealed\t%s\ntags\t%s\nparent\t%s\n", i.Name, i.ID, when(i.SealedAt),
		dash(strings.Join(i.Tags, ",")), dash(i.Parent),
	)
	if len(i.Children) > 0 {
		fmt.Fprintf(w, "needed by\t%s\n", strings.Join(i.Children, ","))
	}
	fmt.Fprintf(w, "logical\t%s in %d files\nzero\t%s\nunique\t%s\nshared\t%s\nstored\t%s\n",
		size(i.Logical), i.Files, size(i.Zero), size(i.Unique), size(i.Shared), size(i.Stored))
	switch {
	case res.Problem != "":
		fmt.Fprintf(w, "images\tcannot be read: %s\n", res.Problem)
	case res.CRIU == nil:
		fmt.Fprintf(w, "images\tnone of criu\n")
	default:
		printImages(w, res.CRIU)
	}
	printGPU(w, res)
	fmt.Fprintf(w, "\nFILE\tSIZE\tZERO\tUNIQUE\tSHARED\n")
	for _, f := range res.Files {
		fmt.Fprintf(
			w, "%s\t%s\t%s\t%s\t%s\n", shown(f.Path), size(f.Size), size(f.Zero), size(f.Unique), size(f.Shared),
		)
	}
}

func printImages(w io.Writer, r *inspect.Report) {
	fmt.Fprintf(w, "images\tin %s, format %d, %s\n", r.Dir, r.ImageVersion, r.Arch)
	if len(r.Plugins) > 0 {
		fmt.Fprintf(w, "plugins\t%s\n", strings.Join(r.Plugins, ","))
	}
	if d := r.Dump; d != nil {
		fmt.Fprintf(
			w, "dump\tfrozen %v, memory %v + %v, %d pages written, %d in the parent\n", d.Frozen, d.MemDump,
			d.MemWrite, d.PagesWritten, d.PagesParent,
		)
	}
	fmt.Fprintf(w, "\nPROCESS\tPID\tTHREADS\tSTATE\tMAPPED\tPRESENT\tLAZY\tZERO\tPARENT\tEXE\n")
	printTree(w, r.Processes, "")
}

func printTree(w io.Writer, list []*inspect.Process, indent string) {
	for _, p := range list {
		m := p.Memory
		if m == nil {
			m = &inspect.Memory{}
		}
		fmt.Fprintf(
			w, "%s%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", indent, dash(shown(p.Comm)), p.PID, len(p.Threads),
			strings.ToLower(p.State), size(int64(m.Mapped)), size(int64(m.Present)), size(int64(m.Lazy)),
			size(int64(m.Zero)), size(int64(m.Parent)), dash(shown(p.Exe)),
		)
		printTree(w, p.Children, indent+"  ")
	}
}
