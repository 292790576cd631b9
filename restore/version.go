package restore

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/gpucr/gpucr-fs/restore/diagnosis"
)

// LeastCRIU is the oldest version of CRIU that this was tried with.
const LeastCRIU = "4.2"

// versionLimit bounds how long a program may take to tell its version.
const versionLimit = 10 * time.Second

// Version asks a program which version of CRIU it is; "" where it is not CRIU.
func Version(ctx context.Context, program string) string {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = time.Second // a child of it may keep the pipe open
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// older tells that a version comes before LeastCRIU.
func older(version string) bool {
	var is, least [2]int
	fmt.Sscanf(version, "%d.%d", &is[0], &is[1])
	fmt.Sscanf(LeastCRIU, "%d.%d", &least[0], &least[1])
	return is[0] < least[0] || is[0] == least[0] && is[1] < least[1]
}

// noCRIU tells what is to be done where there is no CRIU that serves.
const noCRIU = "install criu " + LeastCRIU +
	" or newer, or name it: --criu PROGRAM, or GPUCR_FS_CRIU or CRIU in the environment"

// judge looks whether a program that failed, for a reason that nobody knows, is a CRIU that serves.
func judge(program string, f *diagnosis.Failure) *diagnosis.Failure {
	if f.Cause != "" {
		return f
	}
	switch v := Version(context.Background(), program); {
	case v == "":
		f.Cause, f.Hint = program+" is not criu: its --version shows no version of criu", noCRIU
	case older(v):
		f.Cause, f.Hint = fmt.Sprintf("criu %s is too old (%s)", v, program), noCRIU
	}
	return f
}

// Logged gives the failure that a log of CRIU's tells of, nil where it tells of none or cannot be read. It is for a
// CRIU that another program has run.
func Logged(program, log string) error {
	text, err := os.ReadFile(log)
	if err != nil {
		return nil // the runtime's own words have to do
	}
	if errs := diagnosis.Errors(string(text)); len(errs) > 0 {
		return judge(program, diagnosis.Of(errs))
	}
	return nil
}
