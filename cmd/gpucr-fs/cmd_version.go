package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
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
	var criu string
	c := &cobra.Command{
		Use:     "version",
		Short:   "show the versions of this program, Go and criu",
		Example: "  gpucr-fs version",
		Args:    positional,
		RunE: func(cmd *cobra.Command, _ []string) error {
			res := versionResult{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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
			if res.CRIU = findCRIU(criu); res.CRIU != "" {
				res.CRIUVersion = criuVersion(cmd.Context(), res.CRIU)
			}
			return a.print(res, func(w io.Writer) {
				fmt.Fprintf(w, "gpucr-fs\t%s\ncommit\t%s\ngo\t%s, %s\n", res.Version, dash(res.Commit), res.Go, res.Platform)
				if res.CRIU == "" {
					fmt.Fprintf(w, "criu\tnot found\n")
				} else {
					fmt.Fprintf(w, "criu\t%s, %s\n", dash(res.CRIUVersion), res.CRIU)
				}
			})
		},
	}
	c.Flags().StringVar(&criu, "criu", os.Getenv("CRIU"), "`FILE` of criu (default: $CRIU, else one built beside this program, else the one in $PATH)")
	return c
}

// findCRIU gives the path of criu, "" when there is none.
func findCRIU(path string) string {
	if path != "" {
		return path
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "..", "build", "criu", "criu")
		if _, err := os.Stat(beside); err == nil {
			return filepath.Clean(beside)
		}
	}
	if p, err := exec.LookPath("criu"); err == nil {
		return p
	}
	return ""
}

// criuVersion asks criu; "" when it does not answer.
func criuVersion(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return ""
	}
	for _, line := range strings.Split(string(out), "\n") {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
