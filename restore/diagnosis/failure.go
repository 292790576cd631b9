package diagnosis

import (
	"slices"
	"strings"
)

// Failure is why CRIU did not do what it was asked for.
type Failure struct {
	// Cause is one sentence; empty for a failure that the table does not know.
	Cause string
	// Hint is what the user can do.
	Hint string
	// Lines are the first errors of CRIU's log, as it wrote them.
	Lines []string
}

func (f *Failure) Error() string {
	if f.Cause != "" {
		return f.Cause
	}
	return strings.Join(f.Lines, "; ")
}

// Says tells whether CRIU used these words.
func (f *Failure) Says(words string) bool {
	return slices.ContainsFunc(f.Lines, func(line string) bool { return strings.Contains(line, words) })
}

// shownLines bounds the lines of CRIU's log that are shown: the first errors are the cause, later ones follow from it.
const shownLines = 3

// Of makes a Failure of errors in CRIU's words.
func Of(errs []string) *Failure {
	f := &Failure{}
	f.Cause, f.Hint = lookUp(errs)
	for _, line := range errs {
		if len(f.Lines) < shownLines && !slices.Contains(f.Lines, line) {
			f.Lines = append(f.Lines, line)
		}
	}
	return f
}

// lookUp finds cause and remedy in the table.
func lookUp(errs []string) (cause, hint string) {
	text := strings.Join(errs, "\n")
	for _, k := range failures {
		if m := k.pattern.FindStringSubmatchIndex(text); m != nil {
			return string(k.pattern.ExpandString(nil, k.cause, text, m)),
				string(k.pattern.ExpandString(nil, k.hint, text, m))
		}
	}
	return "", ""
}
