package diagnosis

import (
	"slices"
	"testing"
)

// A process that CRIU cannot stop is told by its reason; a zombie, which it cannot stop either, is none.
func TestErrorsInLog(t *testing.T) {
	const (
		limit  = "(00.07) Error (criu/util.c:1): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
		seize  = "Warn  (compel/src/lib/infect.c:132): Unable to interrupt task: 431 (Operation not permitted)\n"
		detach = "Error (compel/src/lib/infect.c:417): Unable to detach from 431: No such process\n"
		other  = "(00.08) Error (criu/files.c:1): Can't dump file\n"
		failed = "(00.09) Error (criu/cr-dump.c:1975): Dumping FAILED.\n"
	)
	for log, want := range map[string][]string{
		limit + seize + detach + failed: {"Unable to interrupt task: 431 (Operation not permitted)",
			"Unable to detach from 431: No such process"},
		limit + detach + failed:                  {"Unable to detach from 431: No such process"},
		seize + other + failed:                   {"Can't dump file"},
		seize + other + detach + failed:          {"Can't dump file", "Unable to detach from 431: No such process"},
		"(00.07) Warn  (a.c:1): b\n" + failed:    nil,
		"Error (a.c:1): c\nError (no end\nError": {"c"},
		"":                                       nil,
	} {
		if got := Errors(log); !slices.Equal(got, want) {
			t.Errorf("%q has the errors %q, want %q", log, got, want)
		}
	}
}
