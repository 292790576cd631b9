package diagnosis

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// sayings are errors as CRIU writes them, with the beginning of the sentence and of the hint that they become.
var sayings = []struct{ said, cause, hint string }{
	{"criu: unrecognized option '--foo-bar'", "criu has no option --foo-bar", "criu --help"},
	{"criu: invalid option -- 'Z'", "criu has no option -Z", "criu --help"},
	{"criu: option '--ghost-limit' requires an argument",
		"criu's option --ghost-limit needs a value", "criu --help"},
	{"criu: option '--shell-job' doesn't allow an argument",
		"criu's option --shell-job takes no value", "criu --help"},
	{"CRIU needs to have the CAP_SYS_ADMIN or the CAP_CHECKPOINT_RESTORE capability: ",
		"criu needs root's", "run the command as root"},
	{"exited, status=127\nIptables configuration failed",
		"criu could not lock the network of the processes with iptables", "install iptables"},
	{"Can't lookup mount=24 for fd=10 path=/dev/null",
		"descriptor 10 of a process, /dev/null, is on a mount", "close it"},
	{"net: Locking network failed: iptables-restore returned 2. This may be connected to disabled " +
		"CONFIG_NETFILTER_XT_MARK kernel build config option.",
		"criu could not lock the network: iptables-restore ended with 2", "the kernel needs"},
	{"net: Locking network failed using nftables",
		"criu could not lock the network with nftables", "the kernel needs"},
	{"uffd: Unable to open an userfaultfd descriptor: Operation not permitted",
		"the kernel denies userfaultfd", "set sysctl"},
	{"UFFD is not supported", "this kernel lacks userfaultfd", "use a kernel"},
	{"Missing required plugin: cuda_plugin", "the checkpoint needs criu's plugin cuda_plugin,", "install it"},
	{"page-xfer: Unable to spice data: No space left on device", "the disk that criu writes to is full", "free space"},
	{"mnt: Can't create a temporary directory: Read-only file system", "the root of the processes is read-only",
		"run the container"},
	{"Can't mmap memory for pagemap test: Cannot allocate memory", "the machine or the cgroup", "gpucr-fs check"},
	{"cpu: CPU instruction capabilities do not match run time", "the processes used features", "gpucr-fs check"},
	{"The criu itself is within dumped tree.", "gpucr-fs is a descendant", "run it from another"},
	{"inet: Connected TCP socket, consider using --tcp-established option.",
		"the processes have open TCP", "add -- --tcp-established"},
	{"unix: External socket is used. Consider using --ext-unix-sk option.",
		"a unix socket leads", "add -- --ext-unix-sk"},
	{"Some file locks are hold by dumping tasks! You can try --file-locks to dump them.",
		"the processes hold file locks", "add -- --file-locks"},
	{"The root process 7 is not a session leader. Consider using --shell-job option",
		"the processes belong to a terminal", "add -- --shell-job"},
	{"tty: Found dangling tty with sid 1 pgid 1 (pts) on peer fd 0.",
		"the processes belong to a terminal", "add -- --shell-job"},
	{"A session leader of 7(1) is outside of its pid namespace",
		"the session of process 7", "start the first process"},
	{"Can't dump ghost file /tmp/big of 2097152 size, increase limit",
		"the deleted file /tmp/big, 2097152 bytes,", "add -- --ghost-limit 2097152"},
	{"mnt: Mount 5 ./proc (master_id: 1 shared_id: 0) has unreachable sharing. Try --enable-external-masters.",
		"a mount is shared", "add -- --enable-external-masters"},
	{`mnt: Mount 5:./etc is autodetected external mount. Try "--ext-mount-map auto" to allow them.`,
		"a mount comes from outside", "add -- --external"},
	{"PID 7 has uprobes vma. Consider using --allow-uprobes.",
		"process 7 is traced by uprobes", "end the tracing"},
	{"Can't dump file 4 of that type [20666] (chr 10:200 /dev/net/tun)",
		"criu cannot dump an open file: chr 10:200 /dev/net/tun", "gpucr-fs check --pid"},
	{"Tracking memory is not available. Consider omitting --track-mem option.",
		"the kernel does not track", "dump without"},
	{"SEIZE 7: can't interrupt task: Operation not permitted",
		"a process is being traced", "end its debugger"},
	{"Unable to interrupt task: 431 (Operation not permitted)", "a process is being traced", "end its debugger"},
	{"Unable to interrupt task: 431 (No such process)", "process 431 ended before criu", "dump another"},
	{"Can't fork for 431: File exists", "a pid that the checkpoint needs is taken", "a restored process"},
	{"Unable to create a thread: -17", "a pid that the checkpoint needs is taken", "a restored process"},
	{"Pid 44 do not match expected 43", "a pid that the checkpoint needs is taken", "a restored process"},
	{"Can't read async pr bytes (-1 / 24576 read, 0 off, 2 iovs)",
		"a part of the images", "gpucr-fs verify"},
	{"Can't read mapping page -1: Input/output error", "a part of the images", "gpucr-fs verify"},
	{"uffd: No lazy-pages socket", "the server of the memory", "start gpucr-fs lazy-pages"},
	{"File usr/bin/app has bad size 5 (expect 4)",
		"the file usr/bin/app is not as it was", "put it back as it was"},
	{"Can't open file tmp/log on restore: No such file or directory", "the file tmp/log was open", "put it back"},
	{"inet: Can't bind inet socket (id 3): Address already in use",
		"a port that the processes", "end the process that has"},
	{"inet: Can't listen on a socket: Address already in use",
		"a port that the processes", "end the process that has"},
	{"Can't bind inet socket back: Cannot assign requested address",
		"an address that the processes", "add the address"},
	{"apparmor LSM specified but apparmor not supported by kernel", "the security profile", "load the profile"},
	{"Not supported images version 3", "the images are of another version", "restore with the criu"},
	{"unix: Can't dump half of stream unix connection. name: (null); peer name: /run/a",
		"a unix socket is connected to", "dump that process, too"},
	{"unix: Can't dump name-less external socket.", "a unix socket is connected to", "dump that process, too"},
	{"inet: Unsupported proto 262 for socket 1f\ninet: For Go programs, " +
		"consider using \"GODEBUG=multipathtcp=0\" to disable MPTCP",
		"a process has a socket of Multipath TCP", "start it with plain TCP"},
	{"inet: Unsupported proto 132 for socket 1f", "a process has a socket of a protocol (132)", "close it"},
	{"inet: Can't dump 5 inet socket 1f. Only stream, dgram and raw are supported.",
		"a process has a socket of a protocol (5)", "close it"},
	{"The packetized mode for pipes is not supported yet", "a process has a pipe in packet mode", "close it"},
	{"Can't create link remap for /tmp/a. Use link-remap option.",
		"a process has the file /tmp/a open", "add -- --link-remap"},
	{"fsnotify: \tCan't dump that handle", "a process watches a file", "add -- --force-irmap"},
	{"Timeout reached. Try to interrupt: 431", "process 431 did not stop in time", "try again"},
	{"mnt: FS mnt ./mnt/x dev 0x2d root / unsupported id 7",
		"criu does not dump the file system that is mounted at ./mnt/x",
		"unmount it"},
	{"Can't dump nested time namespace for 431", "process 431 has a time namespace of its own", "run it without"},
	{"Can't dump nested uts namespace for 431", "process 431 has a uts namespace of its own", "run it without"},
	{"Can't dump a pid namespace without the process init", "the processes are in a pid namespace", "dump the first"},
	{"Can't dump task 431 running in 32-bit mode", "process 431 runs 32-bit code", "use a criu"},
	{"Unsupported mapping found 0000000000001000-0000000000002000",
		"a process has a device mapped", "gpucr-fs check --pid"},
	{"System call kcmp is not supported: Function not implemented", "this kernel was built without", "use a kernel"},
	{"prctl: PR_SET_MM_BRK is not supported: Invalid argument", "this kernel was built without", "use a kernel"},
	{"cg: Can't move 431 into /a (-1/2): No such file or directory",
		"the cgroups of the processes", "add -- --manage-cgroups"},
	{"Can't open sysctl net/mptcp/enabled: No such file or directory",
		"this machine has no sysctl net/mptcp/enabled", "load the"},
	{"Images corrupted or too old criu was used for dump.", "the images are damaged", "gpucr-fs verify"},
	{"Plugin /usr/lib/criu/a.so has version 30000 while max 20000 supported",
		"criu's plugin /usr/lib/criu/a.so is newer", "install"},
	{"tty: Found slave peer index 3 without correspond master peer",
		"the processes belong to a terminal", "add -- --shell-job"},
	{"Too old image, no longer supported", "the images are of another version", "restore with the criu"},
}

func TestFailuresInPlainWords(t *testing.T) {
	used := map[string]bool{}
	for _, c := range sayings {
		lines := strings.Split(c.said, "\n")
		f := Of(lines)
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
	f := Of([]string{"one", "two", "two", "three", "four"})
	if f.Cause != "" || f.Error() != "one; two; three" {
		t.Errorf("an unknown failure became %q", f.Error())
	}
}

// formats gives the messages in CRIU's program as patterns.
func formats(t *testing.T) (all []*regexp.Regexp) {
	t.Helper()
	program := os.Getenv("CRIU")
	if program == "" {
		program = filepath.Join("..", "..", "build", "criu", "criu")
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatalf("no criu: %v; run make criu", err)
	}
	const shortest = 12 // shorter ones would match anything
	position := regexp.MustCompile(`^(?:Error|Warn ) \(%s:%d\): `)
	verb := regexp.MustCompile(`%[-#0-9.]*(?:ll?|z|h|j)?[a-zA-Z]`)
	for s := range strings.SplitSeq(string(text), "\x00") {
		s = strings.TrimSuffix(position.ReplaceAllString(s, ""), "\n")
		if !utf8.ValidString(s) || len(verb.ReplaceAllString(s, "")) < shortest {
			continue
		}
		var p strings.Builder
		last := 0
		for _, m := range verb.FindAllStringIndex(s, -1) {
			p.WriteString(regexp.QuoteMeta(s[last:m[0]]) + ".*")
			last = m[1]
		}
		all = append(all, regexp.MustCompile("^"+p.String()+regexp.QuoteMeta(s[last:])+"$"))
	}
	return all
}

// CRIU writes every line that the table was tried with, or the C library does for it.
func TestCRIUWritesTheseLines(t *testing.T) {
	all := formats(t)
	for _, c := range sayings {
		for line := range strings.SplitSeq(c.said, "\n") {
			if strings.HasPrefix(line, "criu: ") {
				continue // getopt
			}
			written := func(f *regexp.Regexp) bool { return f.MatchString(line) }
			if !slices.ContainsFunc(all, written) {
				t.Errorf("criu has no message like %q", line)
			}
		}
	}
}

func FuzzLog(f *testing.F) {
	for _, c := range sayings {
		f.Add("(00.07) Error (criu/a.c:1): " + c.said + "\n")
	}
	f.Add("Warn  (a.c:1): Unable to interrupt task: 1 (b)\nError (a.c:1): Unable to detach from 1: No such process")
	f.Fuzz(func(t *testing.T, log string) {
		if got := Of(Errors(log)); len(got.Lines) > shownLines {
			t.Errorf("%d lines", len(got.Lines))
		}
	})
}
