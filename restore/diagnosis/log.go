package diagnosis

import (
	"slices"
	"strings"
)

// noise are errors in CRIU's log that it goes on after, or that only say that there was another.
var noise = []string{"rlimit: Can't setup RLIMIT_NOFILE for self", "Restoring FAILED", "Dumping FAILED"}

// Errors gives the errors in a log of CRIU's. A process that it cannot stop is a warning there, since it may be a
// zombie; the only error is that it cannot let that process go. So the warning comes first then, and has the reason.
func Errors(log string) (errs []string) {
	var warnings []string
	for line := range strings.Lines(log) {
		if what, ok := lineOf(line, "Warn "); ok {
			warnings = append(warnings, what)
		}
		what, ok := lineOf(line, "Error ")
		if ok && !slices.ContainsFunc(noise, func(n string) bool { return strings.HasPrefix(what, n) }) {
			errs = append(errs, what)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	rest, ok := strings.CutPrefix(errs[0], "Unable to detach from ")
	pid, ok2 := strings.CutSuffix(rest, ": No such process")
	i := slices.IndexFunc(warnings, func(w string) bool {
		return strings.HasPrefix(w, "Unable to interrupt task: "+pid+" (")
	})
	if ok && ok2 && i >= 0 {
		errs = slices.Insert(errs, 0, warnings[i])
	}
	return errs
}

// lineOf gives what a line of a level says: "(00.070606) Error (criu/cr-dump.c:1975): Dumping FAILED."
func lineOf(line, level string) (string, bool) {
	_, rest, ok := strings.Cut(line, level)
	_, what, ok2 := strings.Cut(rest, "): ")
	return strings.TrimSpace(what), ok && ok2 && strings.HasPrefix(strings.TrimSpace(rest), "(")
}
