package restore

import (
	"regexp"
	"slices"
	"strings"
)

// Failure is why CRIU did not do what it was asked for.
type Failure struct {
	// Cause is one sentence; empty where nobody has put CRIU's words into plain ones yet.
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

// known is a failure of CRIU whose cause and remedy are known. In both $1 stands for what the pattern has in its first
// group.
type known struct {
	pattern     *regexp.Regexp
	cause, hint string
}

func rule(pattern, cause, hint string) known {
	return known{regexp.MustCompile("(?m)" + pattern), cause, hint}
}

// failures are looked through from the first to the last, so that what is special comes before what is general. The
// patterns are error messages of CRIU 4.2.
var failures = []known{
	// Options.
	rule(`unrecognized option '(--[^']+)'`, "criu has no option $1", "criu --help lists criu's options"),
	rule(`invalid option -- '(.)'`, "criu has no option -$1", "criu --help lists criu's options"),
	rule(`option '(--[^']+)' requires an argument`, "criu's option $1 needs a value", "criu --help lists criu's options"),
	rule(`option '(--[^']+)' doesn't allow an argument`, "criu's option $1 takes no value",
		"criu --help lists criu's options"),

	// The machine.
	rule(`needs to have the CAP_SYS_ADMIN or the CAP_CHECKPOINT_RESTORE capability`, "criu needs root's capabilities",
		"run the command as root"),
	rule(`Iptables configuration failed`,
		"criu could not lock the network of the processes with iptables, which it needs",
		"install iptables, or use nftables: -- --network-lock nftables"),
	rule(`Locking network failed: iptables-restore returned (\d+)`,
		"criu could not lock the network: iptables-restore ended with $1",
		"the kernel needs CONFIG_NETFILTER_XT_MARK; or use nftables: -- --network-lock nftables"),
	rule(`Locking (?:network|connection) failed using nftables`, "criu could not lock the network with nftables",
		"the kernel needs nf_tables; or use iptables: -- --network-lock iptables"),
	rule(`Unable to open an userfaultfd descriptor: Operation not permitted`,
		"the kernel denies userfaultfd to the tasks of a user namespace",
		"set sysctl vm.unprivileged_userfaultfd=1, or use criu restore from a mount made with --allow-other"),
	rule(`UFFD is not supported|Lazy pages are not available`, "this kernel lacks userfaultfd",
		"use a kernel with CONFIG_USERFAULTFD, or criu restore from a mount, which needs none"),
	rule(`Missing required plugin: (\S+)`, "the checkpoint needs criu's plugin $1, which is not installed",
		"install it, and name its folder: -- --libdir DIR"),
	rule(`No space left on device`, "a disk is full that criu writes to",
		"free space on the store's disk: gpucr-fs rm and gc; --free-floor says how much of it is never filled"),
	rule(`(?:Can't|Unable|Failed).*: Cannot allocate memory`, "the machine or the cgroup has too little memory",
		"gpucr-fs check tells how much a restore needs"),
	rule(`cpu: (?:FPU feature required|CPU (?:instruction )?capabilities do not match|CPU xsave)`,
		"the processes used features that this machine's CPU lacks",
		"gpucr-fs check names them; restore on a machine with the same or a newer CPU"),

	// Dump.
	rule(`The criu itself is within dumped tree`,
		"gpucr-fs runs below the process to dump", "run it from another terminal or session (setsid)"),
	rule(`Connected TCP socket, consider using`, "the processes have open TCP connections", "add -- --tcp-established"),
	rule(`(?:External socket is used|External socket found in image)`,
		"a unix socket leads to a process that is not part of the checkpoint", "add -- --ext-unix-sk"),
	rule(`Some file locks are hold by dumping tasks`, "the processes hold file locks", "add -- --file-locks"),
	rule(`Consider using --shell-job option|Found dangling tty`,
		"the processes belong to a terminal or a session that is not part of the checkpoint",
		"add -- --shell-job, or start them in a session of their own (setsid)"),
	rule(`A session leader of (?:zombie process )?(\d+)\(\d+\) is outside of its pid namespace`,
		"the session of process $1 was begun outside of its pid namespace",
		"start the first process of the namespace in a session of its own (setsid)"),
	rule(`Can't dump ghost file (\S+) of (\d+) size, increase limit`,
		"the deleted file $1, $2 bytes, is still open, and larger than criu takes along",
		"add -- --ghost-limit $2"),
	rule(`(?:has unreachable sharing|Try --enable-external-masters)`,
		"a mount is shared with mounts outside of the container", "add -- --enable-external-masters"),
	rule(`is autodetected external mount`, "a mount comes from outside of the container",
		"add -- --external mnt[]"),
	rule(`PID (\d+) has uprobes vma`, "process $1 is traced by uprobes", "end the tracing, or add -- --allow-uprobes"),
	rule(`Can't dump file \d+ of that type \[\d+\] \((\S+) (.*)\)$`, "criu cannot dump an open file: $1 $2",
		"gpucr-fs check --pid names the process that has it; close it before the dump"),
	rule(`Can't lookup mount=\d+ for fd=(\d+) path=(.*)$`,
		"descriptor $1 of a process, $2, is on a mount that the process does not see",
		"close it, or start the process in the mount namespace of its files"),
	rule(`Tracking memory is not available`, "the kernel does not track which pages are written",
		"dump without --track-mem; the kernel needs CONFIG_MEM_SOFT_DIRTY"),
	rule(`PTRACE_SEIZE.*: Operation not permitted|Unable to interrupt task: (\d+) \(Operation not permitted\)`,
		"a process is being traced, or may not be by this user", "end its debugger, and run the command as root"),
	rule(`Unable to interrupt task: (\d+) \(No such process\)`,
		"process $1 ended before criu could stop it", "dump another process"),

	// Restore.
	rule(`Can't fork for (\d+): File exists|Pid (\d+) do not match expected`, "a pid that the checkpoint needs is taken",
		"a restored process has the pid that it had: end who has it, or restore with --own-pids"),
	rule(`Can't read (?:async pr bytes \(-1|mapping page -1: Input/output error)`, "a part of the images cannot be read",
		"gpucr-fs verify names what is damaged; restore --copy-shared leaves what processes share to be read when it is touched"),
	rule(`No lazy-pages socket|Can't connect.*lazy-pages`, "the server of the memory does not listen",
		"start gpucr-fs lazy-pages with the same work directory first"),
	rule(`File (\S+) has bad (?:size|build-ID|mode)`, "the file $1 is not as it was at the dump",
		"put it back as it was; a restored program would find other contents in its memory"),
	rule(`Can't open file (\S+) on restore: No such file or directory`, "the file $1 was open at the dump and is gone",
		"put it back, at the same place"),
	rule(`Can't bind inet socket(?: back| \(id \d+\))?: Address already in use`,
		"a port that the processes listen on is taken", "end who listens there: ss -ltnp shows it"),
	rule(`Can't bind inet socket(?: back| \(id \d+\))?: Cannot assign requested address`,
		"an address that the processes use is not on this machine", "add the address, or restore in their network namespace"),
	rule(`apparmor LSM specified but apparmor not supported|can't write lsm profile`,
		"the security profile of the processes (AppArmor, SELinux) cannot be set here",
		"load the profile, or give another: -- --lsm-profile"),
	rule(`Clone flag mismatch|Not supported images version`, "the images are of another version of criu",
		"restore with the criu that dumped, or a newer one: --criu PROGRAM"),
}

// plain finds cause and remedy of CRIU's errors, in its own words.
func plain(errs []string) (cause, hint string) {
	text := strings.Join(errs, "\n")
	for _, k := range failures {
		if m := k.pattern.FindStringSubmatchIndex(text); m != nil {
			return string(k.pattern.ExpandString(nil, k.cause, text, m)), string(k.pattern.ExpandString(nil, k.hint, text, m))
		}
	}
	return "", ""
}

// shownLines bounds the lines of CRIU's log that are shown: the first errors are the cause, later ones follow from them.
const shownLines = 3

// failed makes a Failure of the errors in CRIU's log.
func failed(errs []string) *Failure {
	f := &Failure{}
	f.Cause, f.Hint = plain(errs)
	for _, line := range errs {
		if len(f.Lines) < shownLines && !slices.Contains(f.Lines, line) {
			f.Lines = append(f.Lines, line)
		}
	}
	return f
}
