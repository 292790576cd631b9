package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) completionCmd() *cobra.Command {
	return &cobra.Command{
		Use:       "completion SHELL",
		Short:     "print the completion script for bash, zsh, fish or powershell",
		Example:   "  gpucr-fs completion bash > /etc/bash_completion.d/gpucr-fs",
		Args:      cobra.MatchAll(positional, validShell),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			default:
				return root.GenPowerShellCompletion(a.out)
			}
		},
	}
}

func validShell(cmd *cobra.Command, args []string) error {
	if err := cobra.OnlyValidArgs(cmd, args); err != nil {
		return usage(
			fmt.Errorf("no completion for the shell %q", args[0]),
			"SHELL is one of "+strings.Join(cmd.ValidArgs, ", "),
		)
	}
	return nil
}
