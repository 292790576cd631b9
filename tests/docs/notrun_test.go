package docs

// What stands between a command and a run of it in these tests.
const (
	output        = "output of the command above"
	configuration = "configuration of another program"
	placeholder   = "has a placeholder that only a failure fills"
	amdGPU        = "an AMD GPU; tests/kfdshell types the same with simulated ones"
	nvidiaGPU     = "an NVIDIA GPU; tests/e2e/cuda does the same with the simulated driver"
	aContainer    = "a container of runc; tests/e2e/runc makes one and does the same"
	podman        = "podman with an image; tests/e2e/podman and podmanrunc do the same"
	vault         = "a script for Vault, which is a service of its own"
	amdMachine    = "a second machine, with AMD GPUs"
	containerd    = "containerd with an image; tests/e2e/containerd does the same"
)

// plain are the pages whose indented lines are no commands.
var plain = map[string]string{
	"docs/format.md":  "layouts of bytes",
	"ARCHITECTURE.md": "the map",
}

// notRun has, by page, the lines that are not run, and what they need.
var notRun = map[string]map[string]string{
	"CONTRIBUTING.md": {
		"go test ./tests/model -run 'TestModel$' -model.seed SEED -model.mode MODE" +
			" -model.time 1ns -model.workers 1": placeholder,
		"go test ./tests/model -run 'TestModel$' -model.program FILE -model.times 20": placeholder,
		"make -C DIR":           "CRIU's sources, which are not part of this project",
		"make -C DIR/test/zdtm": "CRIU's sources, which are not part of this project",
	},
	"docs/containers.md": {
		"podman --runtime /usr/bin/gpucr-runc run -d --name web IMAGE":            podman,
		"podman container checkpoint web":                                         podman,
		"podman container restore web":                                            podman,
		"podman container checkpoint --export web.tar web":                        podman,
		"podman --runtime /usr/bin/gpucr-runc container restore --import web.tar": podman,
		"ctr run -d --runc-binary /usr/bin/gpucr-runc IMAGE web":                  containerd,
		"ctr containers checkpoint --task web web-1":                              containerd,
		"ctr containers restore --live web2 web-1":                                containerd,
		`[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpucr]`:         configuration,
		`[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.gpucr.options]`: configuration,
		"[crio.runtime.runtimes.gpucr]":                                           configuration,
		`runtime_path = "/usr/bin/gpucr-runc"`:                                    configuration,
		`{"runtimes": {"gpucr": {"path": "/usr/bin/gpucr-runc"}}}`:                configuration,
	},
	"docs/encryption.md": {
		"case $GPUCR_FS_KEY_ACTION in": vault,
		`wrap)   vault write -field=ciphertext transit/encrypt/gpucr plaintext="$(cat)" ;;`: vault,
		`unwrap) vault write -field=plaintext transit/decrypt/gpucr ciphertext="$(cat)" ;;`: vault,
		"esac": vault,
	},
	"docs/gpu-amd.md": {
		`criu dump    -D /images/.checkpoints/gpu-1 -L "$(gpucr-fs plugin-dir)" -t PID`:          amdGPU,
		`criu restore -D /images                    -L "$(gpucr-fs plugin-dir)"`:                 amdGPU,
		"BUFFER OBJECT       GPU     KIND  ADDRESS         SIZE    ZERO   SHARED  UNIQUE  IN":    output,
		"amdgpu-kfd-7.img#0  0x6db0  vram  0x7f0000000000  1.0GiB  12MiB  1.0GiB  0B      web-2": output,
		"amdgpu-kfd-7.img#1  0x6db0  vram  0x7f0040000000  64KiB   64KiB  0B      0B      -":     output,
	},
	"docs/gpu-nvidia.md": {
		"gpucr-fs dump store/ llm-1 -t 4711 --leave-running":                nvidiaGPU,
		"gpucr-fs restore store/ llm-1":                                     nvidiaGPU,
		"ln -s /usr/local/bin/gpucr-fs /usr/local/bin/cuda-checkpoint":      nvidiaGPU,
		"cuda-checkpoint --get-state --pid 4711":                            nvidiaGPU,
		"gpucr-fs cuda-checkpoint --action lock --pid 4711 --timeout 10000": nvidiaGPU,
		"build/gpu-pack/run.sh":                                             nvidiaGPU,
		"build/gpu-pack/run.sh -matrix":                                     nvidiaGPU,
		"build/gpu-pack/run.sh -kills 60":                                   nvidiaGPU,
		"build/gpu-pack/run.sh -copies 4":                                   nvidiaGPU,
		"build/gpu-pack/run.sh -models 14g -runs 5":                         nvidiaGPU,
		"build/gpu-pack/run.sh -models 26g -runs 5 -dumps 2":                nvidiaGPU,
	},
	"docs/operations.md": {
		"runc restore --image-path /images/.checkpoints/web-1 --work-path /run/web CONTAINER":  aContainer,
		"restored web-3 as process 5120 (4711 inside)":                                         output,
		"copy 1: restored model as process 5310 (4711 inside), runs after 71ms, 3.9GiB follow": output,
		"...":                            output,
		"mkdir /images/.checkpoints/web": aContainer,
		"runc checkpoint --image-path /images/.checkpoints/web --work-path /run/web-dump web": aContainer,
		"gpucr-fs seal store/ web":                                       aContainer,
		"gpucr-fs lazy-pages -d -D /images/.checkpoints/web -W /run/web": aContainer,
		"runc restore -d --lazy-pages --image-path /images/.checkpoints/web --work-path" +
			" /run/web --bundle /srv/web web": aContainer,
		"podman container checkpoint web -e /dev/fd/3 3>&1 >/dev/null | gpucr-fs" +
			" import store/ web-1 -": podman,
		"podman container checkpoint --keep web":                                  podman,
		`dir=$(dirname "$(podman inspect web --format '{{.OCIConfigPath}}')")`:    podman,
		"gpucr-fs import store/ web-1 $dir/checkpoint && rm -r $dir/checkpoint":   podman,
		"ln -s /images/.checkpoints/web-1 $dir/checkpoint":                        podman,
		"podman container restore web":                                            podman,
		`echo '{"store": "/var/lib/gpucr-fs/node"}' > /etc/gpucr-fs/runtime.json`: podman,
		"podman --runtime gpucr-runc run -d --name web IMAGE":                     podman,
		"podman container checkpoint --export web.tar web":                        podman,
		"podman --runtime gpucr-runc container restore --import web.tar":          podman,
		"amd gpus: failed": output,
		`ssh gpu7 'd=$(mktemp -d) && cd "$d" && cp -rL --parents /sys/class/kfd/kfd/topology \`: amdMachine,
	},
}
