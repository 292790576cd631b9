#!/usr/bin/env bash
# A process on two GPUs, dumped into a store, listed, and restored on demand: it runs before its VRAM is there, and its
# queues when it is. The GPUs, their driver and what the process computes on them are simulated (kfd/kfdsim), at a tenth
# of a PCIe link's rate, so that there is something to see; criu, the plugin, the store and the bytes are real.
# TIMELINE=FILE.svg keeps the picture. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${KFDSIM_DIR:-}" ]; then
	exec "${GO:-go}" run ./tests/kfdshell --check-fills \
		--gpu mi50,rate=150e6,resident=768M --gpu mi50,rate=150e6,resident=768M "$0"
fi

gpucr=$PWD/bin/gpucr-fs criu=${CRIU:-$PWD/build/criu/criu}
work=$(mktemp -d -t gpucr-demo.XXXXXX)
store=$work/store app=$work/app
pid=''

die() { echo "demo: $1" >&2; exit 1; }

cleanup() {
	local rc=$?
	trap - EXIT
	[ -z "$pid" ] || kill -KILL -- "-$pid" 2>/dev/null || true
	# The simulator ends when nobody uses its devices.
	for _ in $(seq 300); do
		if idle; then break; fi
		sleep 0.02
	done
	rm -rf "$work"
	[ $rc = 0 ] || echo "demo: failed" >&2
	exit $rc
}
trap cleanup EXIT
trap 'exit 130' INT TERM

state() { kfdsim get "$KFDSIM_DIR" /state; }
idle() { state | grep -Eq '"processes": *(null|\[\])'; }
seconds() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }'; }

# step TEXT COMMAND... shows a command, runs it, and tells how long it took. What it says on stderr is shown when it
# fails.
step() {
	local text=$1 begun=$EPOCHREALTIME rc=0
	shift
	printf '\n== %s\n$ %s\n' "$text" "$(printf '%s ' "$@" | sed "s,$PWD/,,g")"
	LD_PRELOAD=$KFDSIM_SHIM "$@" 2>"$work/stderr" || rc=$?
	[ $rc = 0 ] || cat "$work/stderr" >&2
	[ $rc = 0 ] || die "'$text' failed with exit code $rc"
	printf '   %s s\n' "$(seconds "$begun")"
}

round() { sed -nE 's/.*round ([0-9]+) ok.*/\1/p' "$app/status.0" 2>/dev/null || true; }

# rounds N waits until the process has verified all its VRAM, CPU-mapped or not, N times more.
rounds() {
	local end=$((SECONDS + 60)) want
	want=$((0$(round) + $1))
	until [ "0$(round)" -ge "$want" ]; do
		! grep -q FAIL "$app/status.0" || die "the process says: $(cat "$app/status.0")"
		[ $SECONDS -lt $end ] || die "the process does not go on: $(cat "$app/status.0" "$app/log")"
		sleep 0.02
	done
	echo "   process $pid: $(sed 's/ *$//' "$app/status.0")"
}

total=$EPOCHREALTIME
mkdir "$app"
printf '\n== a process on two GPUs, which are simulated; it keeps changing and verifying what is in their memory\n'
begun=$EPOCHREALTIME
setsid gpuapp --dir "$app" --bos 10 --max-bo 1048576 --big-bo 100663296 --cpu-bo 4194304 --interval 20 \
	</dev/null >"$app/log" 2>&1 &
pid=$!
disown "$pid"
rounds 1
printf '   %s s\n' "$(seconds "$begun")"

step 'make a store' "$gpucr" init "$store"
step 'dump it, VRAM and all; the process ends' "$gpucr" dump --criu "$criu" -t "$pid" "$store" gpu
end=$((SECONDS + 30))
while kill -0 -- "-$pid" 2>/dev/null || ! idle; do
	[ $SECONDS -lt $end ] || die "process $pid did not end"
	sleep 0.01
done
step 'what the checkpoint holds: GPUs, queues, buffer objects and what of them is shared' "$gpucr" info "$store" gpu
step 'restore it on demand: it runs before its VRAM is there, its queues when it is' \
	"$gpucr" restore --criu "$criu" --vram=lazy --wait --timeline "$work/timeline" "$store" gpu
rounds 2
echo "   every byte of its VRAM verified by the GPUs after the restore"
at() {
	awk -v name="\"$1\"," '
		/"name":/ { found = ($2 == name || $2 " " $3 == name) }
		/"ms":/ && found { print int($2); exit }
	' "$work/timeline.json"
}
resume=$(at resume) ready=$(at 'gpu ready')
[ -n "$resume" ] && [ -n "$ready" ] && [ "$resume" -lt "$ready" ] ||
	die "resume after ${resume:-?} ms, gpu ready after ${ready:-?} ms"
echo "   its CPU ran after $resume ms, its queues after $ready ms"
! state | grep -q '"what"' || die "a GPU met an error: $(state)"
[ -z "${TIMELINE:-}" ] || cp "$work/timeline.svg" "${TIMELINE%.svg}-gpu.svg"
printf '\ndone in %s s; the GPUs were simulated\n' "$(seconds "$total")"
