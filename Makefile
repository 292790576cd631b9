# Every target installs what it lacks, on Debian with Go, apt and the Go module proxy. Tests, demo and benchmarks need
# root and /dev/fuse.

GO        ?= go
RACE      ?=
TIMEOUT   ?= 40m
CRASH_N   ?= 200
FAULTS_N  ?= 20
KILLS_N   ?= 40
FULL_N    ?= 30
TORTURE_N ?= 100
SOAK_N    ?= 5000
STRESS_TIME ?= 10m
VRAM_N    ?= 5
MODEL_TIME ?= 15m
SIMULATE_N ?= 1000000
SIMULATE_SEED ?= 1
FUZZTIME  ?= 30s
ARGS      ?=
PREFIX    ?= /usr/local
CRIU_HOOKS ?= 13
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT    ?= $(shell git rev-parse --short HEAD 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help build plugin install packages gpu-pack criu versitygw deps bench-deps proto clean kfdsim-shell demo
.PHONY: test race lint fuzz test-packages test-docs test-containers torture crash soak model simulate stress zdtm
.PHONY: bench bench-restore bench-encrypt bench-remote bench-page bench-gpu bench-vram matrix-gpu

help: ## show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

build: ## build bin/gpucr-fs, bin/gpucr-runc, and bin/gpucr-cuda, which loads NVIDIA's driver
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-X main.version=$(VERSION) -X main.commit=$(COMMIT)" \
		-o bin/gpucr-fs ./cmd/gpucr-fs
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/gpucr-cuda ./cmd/gpucr-cuda
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/gpucr-runc ./cmd/gpucr-runc

plugin: ## build the CRIU plugin for AMD GPUs in build/plugin (CRIU_HOOKS=15 for CRIU after 4.2)
	@scripts/need.sh cc:gcc libc6-dev
	scripts/plugin.sh build/plugin $(CRIU_HOOKS)

install: build plugin ## install gpucr-fs and the plugin under PREFIX (/usr/local; DESTDIR is put before it)
	install -D -m 755 bin/gpucr-fs $(DESTDIR)$(PREFIX)/bin/gpucr-fs
	install -D -m 755 bin/gpucr-cuda $(DESTDIR)$(PREFIX)/bin/gpucr-cuda
	install -D -m 755 bin/gpucr-runc $(DESTDIR)$(PREFIX)/bin/gpucr-runc
	install -D -m 755 build/plugin/gpucr_plugin.so $(DESTDIR)$(PREFIX)/lib/gpucr-fs/gpucr_plugin.so

packages: build plugin ## build a deb and an rpm in build/packages
	@GO="$(GO)" scripts/packages.sh $(VERSION)

test-packages: packages criu ## install the deb on a bare Debian, use and remove it
	@scripts/need.sh debootstrap:debootstrap
	scripts/test-packages.sh

test-docs: deps criu versitygw ## run the commands of README and docs/, on this machine and on a bare Debian
	$(GO) test -count=1 -timeout 30m -v ./tests/docs
	tests/docs/clean.sh

test-containers: deps criu versitygw ## podman and containerd with containers of 1 GB, by gpucr-runc and without it
	$(GO) test -count=1 -timeout 1h -v ./tests/e2e/podmanrunc ./tests/e2e/containerd \
		-containers.mb 1000 -containers.ratio 0.3

deps:
	@scripts/need.sh cc:gcc libc6-dev linux-libc-dev libdrm-dev setsid:util-linux runc:runc liburing-dev \
		chromium:chromium podman:podman containerd:containerd iptables:iptables

criu: ## put a working CRIU >= 4.2 at build/criu/criu (CRIU=/path to use another)
	@scripts/criu.sh

versitygw: ## put versitygw, an S3 server for tests, at build/versitygw/versitygw (VERSITYGW=/path to use another)
	@GO="$(GO)" scripts/versitygw.sh

test: deps criu versitygw ## run all tests (RACE=1 for the race detector)
	$(GO) test -count=1 -vet=off -timeout $(TIMEOUT) $(if $(RACE),-race) ./...

race: ## run all tests under the race detector
	@$(MAKE) --no-print-directory test RACE=1

lint: ## gofmt, go vet, staticcheck, shell syntax
	@scripts/lint.sh

fuzz: ## run each fuzz target for FUZZTIME (30s)
	@FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

torture: deps criu ## kill and damage under restores TORTURE_N (100) times, of GPUs FAULTS_N (20) and KILLS_N (40)
	$(GO) test -count=1 -timeout 2h -v -run 'Killed|Damaged' ./tests/e2e/restore -torture.n=$(TORTURE_N)
	$(GO) test -count=1 -timeout 2h -v -run 'Faults' ./tests/e2e/plugin -faults.n=$(FAULTS_N)
	$(GO) test -count=1 -timeout 2h -v -run 'KilledUnderVRAM' ./tests/e2e/plugin -kills.n=$(KILLS_N)
	$(GO) test -count=1 -timeout 2h -v -run 'ActorsKilled' ./tests/e2e/cuda -kills=$(TORTURE_N)
	$(GO) test -count=1 -timeout 10m -v -run 'StagingIsBounded' ./restore/vram -server.big

crash: deps ## kill and damage a store CRASH_N (200) times, let somebody fill its disk in FULL_N (30) rounds
	$(GO) test -count=1 -timeout 6h -v ./tests/crash -crash.n=$(CRASH_N) -crash.full=$(FULL_N)

soak: deps ## put SOAK_N (5000) checkpoints through one daemon and see that it does not grow
	$(GO) test -count=1 -timeout 2h -v ./tests/soak -soak.n=$(SOAK_N) -soak.warm=500 -soak.files=64 -soak.growth=64

model: ## run random programs, with crashes and faults, against the store and a model of it for MODEL_TIME (15m)
	$(GO) test -count=1 -timeout 4h -v ./tests/model -run 'TestModel$$' \
		-model.time $(MODEL_TIME) -model.mode all -model.workers 2 -model.seed $$(date +%s)000

simulate: ## simulate SIMULATE_N (1000000) interleavings of machines that share a bucket, from SIMULATE_SEED (1) on
	$(GO) test -count=1 -timeout 4h -v ./index/remote/catalog -run Simulation \
		-sim.n=$(SIMULATE_N) -sim.seed=$(SIMULATE_SEED)

stress: deps criu ## restore processes that change their memory, and VRAM that CPUs write, for STRESS_TIME (10m) each
	$(GO) test -count=1 -timeout 2h -v ./tests/e2e/lazy -run TestStress -stress.time $(STRESS_TIME)
	$(GO) test -count=1 -timeout 2h -v ./tests/e2e/plugin -run TestRunsBeforeVRAM -vram.stress $(STRESS_TIME)

zdtm: deps criu build ## run CRIU's own tests, built in its sources at ZDTM, on the mount and beside it (ARGS=-h)
	@[ -n "$(ZDTM)" ] || { exec >&2; \
		echo "ZDTM is not set: give CRIU's sources with its tests built in them (see CONTRIBUTING.md)"; exit 1; }
	@scripts/need.sh python3-yaml python3-protobuf ip:iproute2 nft:nftables iptables:iptables
	$(GO) build -o build/zdtm ./tests/zdtm
	build/zdtm -src $(ZDTM) $(ARGS)

gpu-pack: criu ## pack build/gpu-pack, to be run on a machine with an NVIDIA GPU: build/gpu-pack/run.sh
	@GO="$(GO)" VERSION="$(VERSION)" COMMIT="$(COMMIT)" scripts/gpu-pack.sh

bench-deps: deps
	@scripts/need.sh restic:restic borg:borgbackup python3:python3 \
		$(if $(shell command -v fusermount3 || command -v fusermount),,fuse3)

bench: bench-deps criu build ## compare with cp, restic, borg, desync on real dumps (ARGS=-h for options)
	$(GO) run ./tests/bench $(ARGS)

bench-restore: deps criu build ## compare restores by criu, criu lazy-pages and gpucr-fs (ARGS=-h for options)
	$(GO) build -o build/benchrestore ./tests/benchrestore
	scripts/run-in-memory.sh build/benchrestore $(ARGS)

bench-encrypt: deps criu build ## what an encrypted store costs beside a plain one (ARGS=-h)
	$(GO) build -o build/benchencrypt ./tests/benchencrypt
	scripts/run-in-memory.sh build/benchencrypt $(ARGS)

bench-remote: deps criu versitygw build ## the same on an empty machine, from a bucket over a slow link (ARGS=-h)
	@scripts/need.sh rclone:rclone
	$(GO) build -o build/benchremote ./tests/benchremote
	scripts/run-in-memory.sh build/benchremote $(ARGS)

bench-page: deps criu ## how soon the page of a store of 10,000 checkpoints is there
	$(GO) test -count=1 -timeout 30m -v -run TestManyCheckpoints ./tests/e2e/page -page.many 10000

bench-gpu: deps criu ## compare sequential with parallel restores of GPU processes, simulated (ARGS=-h for options)
	$(GO) run ./tests/benchgpu $(ARGS)

bench-vram: deps criu ## how soon a process with 2 GiB of VRAM on demand runs, beside one with 16 MiB (VRAM_N=5 times)
	$(GO) test -count=1 -timeout 30m -v ./tests/e2e/plugin -run TestResumeWithoutVRAM \
		-vram.n $(VRAM_N) -vram.size 2147483648

# PEERS=CRIU:DIR[,CRIU:DIR...]: programs of criu, each with the folder of its amdgpu_plugin.so (docs/gpu-amd.md)
matrix-gpu: deps criu ## CRIU's own AMD plugin (PEERS=CRIU:DIR) and ours dump and restore for each other, simulated
	@[ -n "$(PEERS)" ] || { echo "PEERS is not set: PEERS=CRIU:DIR, DIR has its amdgpu_plugin.so" >&2; exit 1; }
	$(GO) test -count=1 -timeout 2h -v ./tests/e2e/plugin -run Matrix -peers "$(PEERS)"

demo: deps criu versitygw build plugin ## dump and restore a real process, here and on a second node, then one with GPUs
	@scripts/demo.sh
	@GO="$(GO)" scripts/demo-gpu.sh

kfdsim-shell: deps criu ## open a shell with simulated AMD GPUs (ARGS="--gpu mi300x --gpu mi300x")
	@$(GO) run ./tests/kfdshell $(ARGS)

proto: ## regenerate the protobuf code
	@scripts/need.sh protoc:protobuf-compiler
	@scripts/proto.sh

clean: ## remove bin and build
	rm -rf bin build
