package restore

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Errors as CRIU writes them, with the beginning of the sentence and of the hint that they become.
var sayings = []struct{ said, cause, hint string }{
	{"criu: unrecognized option '--foo-bar'", "criu has no option --foo-bar", "criu --help"},
	{"criu: invalid option -- 'Z'", "criu has no option -Z", "criu --help"},
	{"criu: option '--ghost-limit' requires an argument", "criu's option --ghost-limit needs a value", "criu --help"},
	{"criu: option '--shell-job' doesn't allow an argument", "criu's option --shell-job takes no value", "criu --help"},
	{"CRIU needs to have the CAP_SYS_ADMIN or the CAP_CHECKPOINT_RESTORE capability: ", "criu needs root's", "run the command as root"},
	{"exited, status=127\nIptables configuration failed", "criu could not lock the network of the processes with iptables", "install iptables"},
	{"Can't lookup mount=24 for fd=10 path=/dev/null", "descriptor 10 of a process, /dev/null, is on a mount", "close it"},
	{"net: Locking network failed: iptables-restore returned 2. This may be connected to disabled CONFIG_NETFILTER_XT_MARK kernel build config option.", "criu could not lock the network: iptables-restore ended with 2", "the kernel needs"},
	{"net: Locking network failed using nftables", "criu could not lock the network with nftables", "the kernel needs"},
	{"uffd: Unable to open an userfaultfd descriptor: Operation not permitted", "the kernel denies userfaultfd", "set sysctl"},
	{"UFFD is not supported", "this kernel lacks userfaultfd", "use a kernel"},
	{"Missing required plugin: cuda_plugin", "the checkpoint needs criu's plugin cuda_plugin,", "install it"},
	{"page-xfer: Unable to spice data: No space left on device", "a disk is full", "free space"},
	{"Can't mmap memory for pagemap test: Cannot allocate memory", "the machine or the cgroup", "gpucr-fs check"},
	{"cpu: CPU instruction capabilities do not match run time", "the processes used features", "gpucr-fs check"},
	{"The criu itself is within dumped tree.", "gpucr-fs runs below", "run it from another"},
	{"inet: Connected TCP socket, consider using --tcp-established option.", "the processes have open TCP", "add -- --tcp-established"},
	{"unix: External socket is used. Consider using --ext-unix-sk option.", "a unix socket leads", "add -- --ext-unix-sk"},
	{"Some file locks are hold by dumping tasks! You can try --file-locks to dump them.", "the processes hold file locks", "add -- --file-locks"},
	{"The root process 7 is not a session leader. Consider using --shell-job option", "the processes belong to a terminal", "add -- --shell-job"},
	{"tty: Found dangling tty with sid 1 pgid 1 (pts) on peer fd 0.", "the processes belong to a terminal", "add -- --shell-job"},
	{"A session leader of 7(1) is outside of its pid namespace", "the session of process 7", "start the first process"},
	{"Can't dump ghost file /tmp/big of 2097152 size, increase limit", "the deleted file /tmp/big, 2097152 bytes,", "add -- --ghost-limit 2097152"},
	{"mnt: Mount 5 ./proc (master_id: 1 shared_id: 0) has unreachable sharing. Try --enable-external-masters.", "a mount is shared", "add -- --enable-external-masters"},
	{`mnt: Mount 5:./etc is autodetected external mount. Try "--ext-mount-map auto" to allow them.`, "a mount comes from outside", "add -- --external"},
	{"PID 7 has uprobes vma. Consider using --allow-uprobes.", "process 7 is traced by uprobes", "end the tracing"},
	{"Can't dump file 4 of that type [20666] (chr 10:200 /dev/net/tun)", "criu cannot dump an open file: chr 10:200 /dev/net/tun", "gpucr-fs check --pid"},
	{"Tracking memory is not available. Consider omitting --track-mem option.", "the kernel does not track", "dump without"},
	{"SEIZE 7: Unable to interrupt task: 7 (Operation not permitted)", "a process is being traced", "end its debugger"},
	{"Unable to interrupt task: 431 (No such process)", "process 431 ended before criu", "dump another"},
	{"Can't fork for 431: File exists", "a pid that the checkpoint needs is taken", "a restored process"},
	{"Pid 44 do not match expected 43", "a pid that the checkpoint needs is taken", "a restored process"},
	{"pagemap: Can't read async pr bytes (-1 / 24576 read, 0 off, 2 iovs)", "a part of the images", "gpucr-fs verify"},
	{"pagemap: Can't read mapping page -1: Input/output error", "a part of the images", "gpucr-fs verify"},
	{"uffd: No lazy-pages socket", "the server of the memory", "start gpucr-fs lazy-pages"},
	{"File usr/bin/app has bad size 5 (expect 4)", "the file usr/bin/app is not as it was", "put it back as it was"},
	{"Can't open file tmp/log on restore: No such file or directory", "the file tmp/log was open", "put it back"},
	{"inet: Can't bind inet socket (id 3): Address already in use", "a port that the processes", "end who listens"},
	{"Can't bind inet socket back: Cannot assign requested address", "an address that the processes", "add the address"},
	{"apparmor LSM specified but apparmor not supported by kernel", "the security profile", "load the profile"},
	{"Not supported images version 3", "the images are of another version", "restore with the criu"},
}

func TestFailuresInPlainWords(t *testing.T) {
	used := map[string]bool{}
	for _, c := range sayings {
		lines := strings.Split(c.said, "\n")
		f := failed(lines)
		if !strings.HasPrefix(f.Cause, c.cause) || !strings.HasPrefix(f.Hint, c.hint) || !slices.Equal(f.Lines, lines) {
			t.Errorf("%q became %q, hint %q, lines %q", c.said, f.Cause, f.Hint, f.Lines)
		}
		for _, k := range failures {
			if k.pattern.MatchString(c.said) {
				used[k.pattern.String()] = true
				break
			}
		}
	}
	for _, k := range failures {
		if !used[k.pattern.String()] {
			t.Errorf("no example of %v", k.pattern)
		}
	}
	f := failed([]string{"one", "two", "two", "three", "four"})
	if f.Cause != "" || f.Error() != "one; two; three" {
		t.Errorf("an unknown failure became %q", f.Error())
	}
}

func TestProgramIsJudged(t *testing.T) {
	dir := t.TempDir()
	program := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct{ text, cause string }{
		{"exit 1", " is not criu: it does not tell a version of it"},
		{"echo hello", " is not criu: it does not tell a version of it"},
		{"echo Version: 3.17.1", "criu 3.17.1 is too old ("},
		{"echo Version: 4.1", "criu 4.1 is too old ("},
		{"echo Version: 4.2", ""},
		{"echo Version: 10.0", ""},
	} {
		f := judge(program("criu", c.text), failed([]string{"it ended"}))
		if !strings.Contains(f.Cause, c.cause) || (c.cause == "") != (f.Cause == "") {
			t.Errorf("%q: %q", c.text, f.Cause)
		}
	}
	if f := judge(program("criu", "exit 1"), &Failure{Cause: "known"}); f.Cause != "known" {
		t.Errorf("a known cause became %q", f.Cause)
	}
}
