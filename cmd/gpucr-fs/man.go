//go:build man

package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// init makes of the program one that writes its manual pages: scripts/packages.sh runs it with the folder.
func init() {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	root := a.root()
	root.DisableAutoGenTag = true
	root.InitDefaultHelpCmd()
	indent(root)
	header := &doc.GenManHeader{Section: "1", Source: "gpucr-fs " + version, Manual: "gpucr-fs"}
	if err := doc.GenManTree(root, header, os.Args[1]); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// indent keeps the lines of texts that a manual page would run together.
func indent(c *cobra.Command) {
	c.Long = strings.ReplaceAll(c.Long, "<", "\\<")
	for _, sub := range c.Commands() {
		indent(sub)
	}
}
