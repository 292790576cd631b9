package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/daemon/client"
	"github.com/gpucr/gpucr-fs/daemon/service"
	"github.com/gpucr/gpucr-fs/daemon/wire"
)

// completionTime bounds how long somebody who pressed Tab waits for a store.
const completionTime = 2 * time.Second

// checkpointArguments are the names of arguments, in usage lines, that stand for a checkpoint that is there.
var checkpointArguments = []string{"NAME", "A", "B", "FROM", "TO"}

// newNames are commands whose NAME is that of a checkpoint to be made.
var newNames = []string{"dump", "import"}

// completeArguments has a shell complete the arguments of a command and of those below it: folders for STORE and DIR,
// the names and tags of the store's checkpoints for NAME.
func (a *app) completeArguments(c *cobra.Command) {
	for _, sub := range c.Commands() {
		a.completeArguments(sub)
	}
	names := usageNames(strings.NewReplacer("{", "", "}", "").Replace(c.Use))
	if len(names) == 0 || len(c.ValidArgs) > 0 || c.ValidArgsFunction != nil {
		return
	}
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		at := len(args)
		last := len(names) - 1
		if at > last && strings.HasSuffix(names[last], "...]") {
			at = last
		}
		if at > last {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		name := strings.Trim(names[at], "[].")
		switch {
		case name == "STORE" || name == "DIR":
			return nil, cobra.ShellCompDirectiveFilterDirs
		case slices.Contains(checkpointArguments, name) && !slices.Contains(newNames, cmd.Name()):
			return a.checkpointNames(cmd.Context(), args[0], args[1:]), cobra.ShellCompDirectiveNoFileComp
		case name == "SOURCE" || name == "TARGET":
			return nil, cobra.ShellCompDirectiveDefault
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// checkpointNames gives names and tags of the checkpoints of a store but those that stand there. A store that cannot be
// read has none: a shell has no place for an error.
func (a *app) checkpointNames(ctx context.Context, store string, but []string) (all []string) {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	a.quiet = true
	_ = a.readingSession(ctx, store, func(s *client.Session) error {
		res, err := service.List.Do(ctx, s, service.ListRequest{}, wire.Streams{})
		for _, c := range res.Checkpoints {
			all = append(append(all, c.Name), c.Tags...)
		}
		return err
	})
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(n string) bool { return slices.Contains(but, n) })
}
