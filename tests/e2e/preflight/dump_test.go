package preflight

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpucr/gpucr-fs/preflight"
	"github.com/gpucr/gpucr-fs/tests/cli"
)

// The command refuses before it has touched anything, and goes on when it is told to; the process goes on in any case.
func TestDumpCommand(t *testing.T) {
	store := filepath.Join(t.TempDir(), "store")
	run := func(want int, args ...string) (string, string) {
		t.Helper()
		out, err := program.RunIn(timeout, args...)
		said := ""
		if err != nil {
			said = err.Error()
		}
		if cli.Code(err) != want {
			t.Fatalf("%v: exit %d, want %d: %s%s", args, cli.Code(err), want, out, said)
		}
		return out, said
	}
	run(cli.OK, "init", store)
	pid := strconv.Itoa(start(t, nil, subject, "perf"))
	alive := func() {
		t.Helper()
		if text, err := os.ReadFile("/proc/" + pid + "/stat"); err != nil || !strings.Contains(string(text), ") S ") {
			t.Errorf("the process does not go on: %s, %v", text, err)
		}
		if out, _ := run(cli.OK, "ls", store); strings.Contains(out, "one") {
			t.Errorf("a dump that failed left a checkpoint: %s", out)
		}
	}
	_, said := run(cli.Failed, "dump", store, "one", "-t", pid)
	for _, want := range []string{"cannot be dumped", "perf_event", "close them", "--force"} {
		if !strings.Contains(said, want) {
			t.Errorf("nothing of %q: %s", want, said)
		}
	}
	if strings.Contains(said, "criu dump:") {
		t.Errorf("criu was asked: %s", said)
	}
	alive()
	if _, said = run(cli.Failed, "dump", store, "one", "-t", pid, "--force"); !strings.Contains(said, "criu dump:") {
		t.Errorf("criu was not asked: %s", said)
	}
	alive()

	// criu's own word for a process that is traced is that it cannot detach from it: no such process.
	traced := strconv.Itoa(start(t, nil, subject, "traced"))
	_, said = run(cli.Failed, "dump", store, "one", "-t", traced, "--force")
	if !strings.Contains(said, "criu dump: a process is being traced") {
		t.Errorf("a traced process is dumped: %s", said)
	}
	alive()

	// The report for programs.
	out, _ := run(cli.OK, "check", "--json", "--pid", strconv.Itoa(start(t, nil, subject, "idle")))
	var r preflight.Report
	must(t, json.Unmarshal([]byte(out), &r))
	if !r.OK() || r.Processes != 1 || !strings.Contains(out, `"findings": []`) {
		t.Errorf("an idle process: %s", out)
	}
	run(cli.Failed, "check", "--pid", "1073741824")
	run(cli.Usage, "check", "--pid", "0")
	run(cli.Usage, "check", "--pid", pid, store, "one")
	run(cli.Usage, "check", store)

	// Options that dump would have count.
	tcp := strconv.Itoa(start(t, nil, subject, "tcp"))
	if out, said := run(cli.Failed, "check", "--pid", tcp); !strings.Contains(out, "stops: process "+tcp) ||
		!strings.Contains(said, "tcp-established") {
		t.Errorf("check: %s%s", out, said)
	}
	if out, _ := run(cli.OK, "check", "--pid", tcp, "--", "--tcp-established"); !strings.Contains(
		out,
		"no known problem prevents",
	) {
		t.Errorf("check: %s", out)
	}
	run(cli.OK, "dump", store, "two", "-t", tcp, "--leave-running", "--", "--tcp-established")
}
