package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/gpucr/gpucr-fs/restore"
)

// versionResult tells what runs here.
type versionResult struct {
	Version     string `json:"version"`
	Commit      string `json:"commit,omitempty"`
	Modified    bool   `json:"modified,omitempty"` // built from a tree with changes
	Go          string `json:"go"`
	Platform    string `json:"platform"`
	CRIU        string `json:"criu,omitempty"` // path of the criu found
	CRIUVersion string `json:"criu_version,omitempty"`
}

func (a *app) versionCmd() *cobra.Command {
	var criu criuFlags
	c := &cobra.Command{
		Use:     "version",
		Short:   "show the versions of this program, Go and criu",
		Example: "  gpucr-fs version",
		Args:    positional,
		RunE: func(cmd *cobra.Command, _ []string) error {
			res := versionResult{
				Version:  version,
				Commit:   commit,
				Go:       runtime.Version(),
				Platform: runtime.GOOS + "/" + runtime.GOARCH,
			}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, s := range info.Settings {
					switch s.Key {
					case "vcs.revision":
						res.Commit = s.Value
					case "vcs.modified":
						res.Modified = s.Value == "true"
					}
				}
			}
			var missing error
			if res.CRIU, missing = criu.find(); missing == nil {
				res.CRIUVersion = restore.Version(cmd.Context(), res.CRIU)
			}
			return a.print(res, func(w io.Writer) {
				fmt.Fprintf(
					w, "gpucr-fs\t%s\ncommit\t%s\ngo\t%s, %s\n", res.Version, dash(res.Commit), res.Go, res.Platform,
				)
				switch {
				case missing != nil:
					fmt.Fprintf(w, "criu\tnot found: %v\n", missing)
				case res.CRIUVersion == "":
					fmt.Fprintf(w, "criu\t%s is not criu\n", res.CRIU)
				default:
					fmt.Fprintf(w, "criu\t%s, %s\n", res.CRIUVersion, res.CRIU)
				}
			})
		},
	}
	criu.add(c.Flags())
	return c
}
