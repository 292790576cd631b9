package preflight

// Kinds of findings.
const (
	kindURing      = "io_uring"
	kindAnon       = "anon-inode"
	kindDevice     = "device"
	kindDeviceMap  = "device-mapping"
	kindBlock      = "block-device"
	kindPidfd      = "pidfd"
	kindTCP        = "tcp-established"
	kindLock       = "network-lock"
	kindBacklog    = "tcp-backlog"
	kindMPTCP      = "mptcp"
	kindSocket     = "socket-family"
	kindUnixPeer   = "unix-peer"
	kindGhost      = "unlinked-file"
	kindLinked     = "unlinked-name"
	kindMount      = "unreachable-mount"
	kindFileLock   = "file-lock"
	kindSysV       = "sysv-shm"
	kindSecret     = "secret-memory"
	kindTraced     = "traced"
	kindDead       = "dead"
	kindHalfDead   = "first-thread-ended"
	kindAsleep     = "uninterruptible"
	kindSession    = "shell-job"
	kindTerminal   = "terminal"
	kindLeader     = "session-leader"
	kindInit       = "pid-namespace"
	kindNested     = "nested-namespace"
	kindFS         = "file-system"
	kindUprobes    = "uprobes"
	kindInherited  = "cuda-inherited"
	kindManaged    = "cuda-managed"
	kindNCCL       = "nccl"
	kindCUDAState  = "cuda-state"
	kindCUDADriver = "cuda-driver"
	kindGPUs       = "gpus"
	kindPeers      = "several-gpus"
	kindPools      = "shared-pools"
	kindXLA        = "xla-several-gpus"
	kindIPC        = "cuda-ipc"
	kindSuspended  = "cuda-suspended"
)

// Kinds that a dump can take care of.
const (
	CUDAInherited = kindInherited
	IOURing       = kindURing
)

// rules say what each kind stops, and what helps. What is in quotes of CRIU's is the option of its command line, as it
// is given after --.
var rules = map[string]rule{
	kindURing: {Stops, "has an io_uring ring (%s), and criu dumps none",
		"dump --park-rings parks idle ones; or start it where io_uring is forbidden (kernel.io_uring_disabled=2, or " +
			"a container's seccomp profile), or with UV_USE_IO_URING=0, which some versions of libuv heed"},
	kindAnon: {Stops, "has descriptors of a kind that criu does not dump (%s)", "close them before the dump"},
	kindDevice: {
		Stops,
		"has a device open that criu cannot dump (%s)",
		"close it before the dump, or give criu a plugin for it: -- --libdir DIR",
	},
	kindDeviceMap: {
		Stops,
		"has mapped a device that criu cannot dump (%s)",
		"unmap it before the dump, or give criu a plugin for it: -- --libdir DIR",
	},
	kindBlock: {Stops, "has a block device open (%s), and criu dumps none", "close it before the dump"},
	kindPidfd: {
		Stops,
		"has a pidfd of a process outside the tree, or of a thread (%s)",
		"close it before the dump, or dump from the other process on",
	},
	kindTCP: {
		Stops,
		"has TCP connections (%s)",
		"add -- --tcp-established, or -- --tcp-close to have them closed",
	},
	kindLock: {
		Stops,
		"has TCP connections (%s), and criu holds them by iptables, which is not there",
		"install iptables, or add -- --network-lock nftables",
	},
	kindBacklog: {
		Stops,
		"has TCP connections that nobody has accepted yet (%s)",
		"try again, or add -- --skip-in-flight to have them dropped",
	},
	kindMPTCP: {
		Stops,
		"has sockets of multipath TCP (%s), and criu dumps none",
		"start it with GODEBUG=multipathtcp=0 (Go), or with IPPROTO_TCP",
	},
	kindSocket: {Stops, "has sockets of a kind that criu does not dump (%s)", "close them before the dump"},
	kindUnixPeer: {Stops, "is connected by unix sockets to processes outside the tree (%s)",
		"close the connection, dump both ends as one tree, or leave the socket to the restore: -- --external " +
			"'unix[INODE]'"},
	kindGhost: {
		Stops,
		"uses deleted files larger than criu takes along (%s)",
		"add -- --ghost-limit with a larger size, such as 1G",
	},
	kindLinked: {Stops, "uses files whose name was deleted while they have another (%s)", "add -- --link-remap"},
	kindMount: {
		Stops,
		"has files open on a mount that is not in its mount namespace any more (%s)",
		"close them before the dump",
	},
	kindFileLock: {Stops, "holds file locks (%s)", "add -- --file-locks"},
	kindSysV: {
		Stops,
		"shares System V memory (%s) without an IPC namespace of its own",
		"start it by unshare --ipc, or in a container",
	},
	kindSecret:   {Stops, "has memory that nobody else can read (%s: memfd_secret)", ""},
	kindTraced:   {Stops, "is traced by %s, and criu has to trace it", "end the debugger, strace or profiler"},
	kindDead:     {Stops, "has ended and waits to be reaped", "name a process that runs"},
	kindHalfDead: {Stops, "has threads while its first one has ended, and criu dumps no such process", ""},
	kindAsleep: {
		Stops,
		"has threads in uninterruptible sleep for as long as was looked (%s), and criu waits for them in vain",
		"try again when they have woken up",
	},
	kindSession: {
		Stops,
		"belongs to session %s, whose leader is not part of the tree",
		"add -- --shell-job, or start it by setsid",
	},
	kindTerminal: {
		Stops,
		"uses a terminal whose other end is outside the tree (%s)",
		"add -- --shell-job, or start it with its input and output elsewhere",
	},
	kindLeader: {
		Stops,
		"belongs to a session of another pid namespace",
		"start its namespace's first process in a session of its own (setsid)",
	},
	kindInit: {
		Stops,
		"lives in a pid namespace without being its first process",
		"dump from the namespace's first process on: -t %s",
	},
	kindNested: {
		Stops,
		"has namespaces of its own within the tree (%s), and criu dumps those of the first process alone",
		"",
	},
	kindFS: {
		Stops,
		"sees file systems that criu cannot mount again (%s)",
		"add -- --external 'mnt[PATH]:NAME' for each, or --enable-fs, or unmount them there",
	},
	kindUprobes: {Stops, "is being probed by uprobes", "end the probes, or add -- --allow-uprobes"},
	kindInherited: {
		Stops,
		"has what its parent had of the GPUs when it forked (%s); CUDA does not survive fork, and criu dumps no " +
			"GPU's device",
		"start workers by spawn or forkserver, or before CUDA is used",
	},
	kindManaged: {
		Stops,
		"has managed memory (cudaMallocManaged: %s), which the driver does not checkpoint",
		"free it, or use cudaMalloc; no later dump of this process works",
	},
	kindNCCL: {Loses, "uses NCCL between GPUs by transports that the driver takes down and cannot bring back (%s)",
		"start it with NCCL_P2P_DISABLE=1 and NCCL_CUMEM_ENABLE=0 or NCCL_CUMEM_HOST_ENABLE=0"},
	kindCUDAState: {Stops, "cannot be served by the driver: %s", ""},
	kindCUDADriver: {
		Stops,
		"uses CUDA (%s), and the driver cannot take its GPU state",
		"driver 570 or newer and gpucr-cuda are needed, or --no-gpu to leave that to criu's cuda_plugin",
	},
	kindIPC: {
		Loses,
		"uses GPU memory of another process by CUDA IPC (%s), which the driver takes down and cannot bring back",
		"let it drop what it was sent (PyTorch: tensors from another process's queue) before the dump, or share " +
			"copies in host memory",
	},
	kindPools: {
		Loses,
		"allocates from pools of several GPUs (%s); the driver seems to bring them back, and the next access to " +
			"another GPU's pool fails",
		"start it with PyTorch's own allocator, or TensorFlow's",
	},
	kindXLA: {
		Loses,
		"uses several GPUs through XLA (%s), whose memory the driver takes down and cannot bring back",
		"start it with one GPU for each process (CUDA_VISIBLE_DEVICES)",
	},
	kindPeers: {
		Note,
		"has contexts on several GPUs (%s); direct copies between them come back, memory pools that they share " +
			"(cudaMallocAsync) do not, and cannot be seen",
		"try it with a process that may be lost",
	},
	kindSuspended: {Note, "has its GPU state %s already", ""},
	kindGPUs:      {Elsewhere, "uses %s", "on a machine with other GPUs restore with --device-map"},
}
