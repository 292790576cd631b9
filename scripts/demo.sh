#!/usr/bin/env bash
# The whole story on one real process: dumped twice by criu straight into a mounted store, deduplicated, the daemon
# stopped and started, the process restored from the mount by criu as it is, and once more on demand; then taken to a
# bucket, and restored from there on a second node, which has nothing but the bucket's address. MEM sets its memory in
# MB; TIMELINE=FILE.svg keeps the picture of the last restore on the first node. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

gpucr=$PWD/bin/gpucr-fs criu=${CRIU:-$PWD/build/criu/criu} mem=${MEM:-640}
work=$(mktemp -d -t gpucr-demo.XXXXXX)
store=$work/store mnt=$work/mnt status=$work/status
store2=$work/node-2/store mnt2=$work/node-2/mnt
gateway=${VERSITYGW:-$PWD/build/versitygw/versitygw}
pid='' criu_pid='' gateway_pid=''

die() { echo "demo: $1" >&2; exit 1; }

cleanup() {
	local rc=$?
	trap - EXIT
	[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
	[ -z "$criu_pid" ] || wait "$criu_pid" 2>/dev/null || true
	for m in "$mnt" "$mnt2"; do
		! mountpoint -q "$m" || "$gpucr" umount "$m" || umount -l "$m" || true
	done
	[ -z "$gateway_pid" ] || { kill "$gateway_pid"; wait "$gateway_pid"; } 2>/dev/null || true
	rm -rf "$work"
	[ $rc = 0 ] || echo "demo: failed" >&2
	exit $rc
}
trap cleanup EXIT
trap 'exit 130' INT TERM

seconds() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }'; }

# step TEXT COMMAND... shows a command, runs it, and tells how long it took. What it says on stderr is shown when it
# fails.
step() {
	local text=$1 begun=$EPOCHREALTIME rc=0
	shift
	printf '\n== %s\n$ %s\n' "$text" "$(printf '%s ' "$@" | sed "s,$PWD/,,g")"
	"$@" 2>"$work/stderr" || rc=$?
	[ $rc = 0 ] || cat "$work/stderr" >&2
	[ $rc = 0 ] || die "'$text' failed with exit code $rc"
	printf '   %s s\n' "$(seconds "$begun")"
}

field() { sed -nE "s/.*$1=([0-9]+).*/\1/p" "$status"; }
healthy() { case $(cat "$status") in ok*) ;; *) die "the process says: $(sed 's/ *$//' "$status")" ;; esac; }

# passes N waits until parent and child have verified all their memory N more times.
passes() {
	local want child end=$((SECONDS + 120))
	until [ -n "$(field ' passes')" ]; do
		[ $SECONDS -lt $end ] || die "the process does not go on"
		sleep 0.02
	done
	want=$(($(field ' passes') + $1)) child=$(($(field child_passes) + $1))
	until [ "$(field ' passes')" -ge "$want" ] && [ "$(field child_passes)" -ge "$child" ]; do
		healthy
		[ $SECONDS -lt $end ] || die "the process does not go on: $(cat "$status")"
		sleep 0.05
	done
	healthy
	echo "   process $pid: $(sed 's/ *$//' "$status")"
}

# gone waits until a process group has ended: its number, which is also the process's, is free only when the child has
# been reaped, too.
gone() {
	local end=$((SECONDS + 30))
	while kill -0 -- "-$1" 2>/dev/null; do
		[ $SECONDS -lt $end ] || die "process $1 did not end"
		sleep 0.01
	done
}

# serve starts an S3 server with an empty bucket, and sets endpoint.
serve() {
	local port end
	export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=a-secret-for-the-demo
	mkdir -p "$work/objects/checkpoints"
	for _ in 1 2 3 4 5; do
		port=$((20000 + RANDOM % 12000)) # below those that Linux gives to clients
		ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
			"$gateway" --port "127.0.0.1:$port" --quiet posix "$work/objects" \
				>"$work/gateway.log" 2>&1 &
		gateway_pid=$! endpoint=http://127.0.0.1:$port end=$((SECONDS + 30))
		while kill -0 "$gateway_pid" 2>/dev/null && [ $SECONDS -lt $end ]; do
			! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 0
			sleep 0.05
		done
	done
	die "versitygw does not serve: $(cat "$work/gateway.log")"
}

total=$EPOCHREALTIME
mkdir -p "$mnt" "$mnt2"
[ -x "$gateway" ] || die "no versitygw at $gateway: run make versitygw"
echo "criu:     $("$criu" --version | head -n1)"
echo "gpucr-fs: $("$gpucr" version | awk 'NR == 1 { print $2 }')"
echo "machine:  $(nproc) cores, Linux $(uname -r)"

cc -O2 -static -pthread -o "$work/workload" tests/workload/src/workload.c -lm
printf '\n== a process with 4 threads, a child and %s MB it keeps verifying\n' "$mem"
begun=$EPOCHREALTIME
setsid "$work/workload" --status "$status" --mem "$mem" --threads 4 </dev/null >"$work/workload.log" 2>&1 &
pid=$!
disown "$pid" # it is going to be killed by its dump; bash need not report that
until [ -s "$status" ]; do
	kill -0 "$pid" 2>/dev/null || die "the process ended: $(cat "$work/workload.log")"
	sleep 0.02
done
passes 1
printf '   %s s\n' "$(seconds "$begun")"

serve
step 'make a store that shares a bucket' "$gpucr" init --remote "s3://checkpoints/demo?endpoint=$endpoint" "$store"
step 'mount it' "$gpucr" mount "$store" "$mnt"
step 'a checkpoint opened for writing' mkdir "$mnt/.checkpoints/first"
step 'first dump, straight into the store; the process runs on' \
	"$criu" dump -t "$pid" -D "$mnt/.checkpoints/first" --leave-running
passes 2
sleep 2
step 'a second one' mkdir "$mnt/.checkpoints/second"
step 'second dump; the process ends' "$criu" dump -t "$pid" -D "$mnt/.checkpoints/second"
gone "$pid"

step 'what the store holds' "$gpucr" ls "$store"
step 'what it occupies' "$gpucr" du "$store"
step 'what the two dumps share' "$gpucr" diff "$store" first second

step 'stop the daemon' "$gpucr" umount "$mnt"
step 'start it again; the mount shows the latest checkpoint' "$gpucr" mount "$store" "$mnt"

printf '%255s\n' '' >"$status"
printf '\n== restore the process from the mount\n$ %s restore -D %s\n' "${criu#"$PWD"/}" "$mnt"
begun=$EPOCHREALTIME
"$criu" restore -D "$mnt" </dev/null 2>"$work/stderr" &
criu_pid=$!
until grep -q passes "$status"; do
	kill -0 "$criu_pid" 2>/dev/null || { cat "$work/stderr" >&2; criu_pid=''; die 'criu restore failed'; }
	sleep 0.01
done
printf '   running after %s s\n' "$(seconds "$begun")"
passes 2
echo "   every byte of its memory verified after the restore"

kill "$pid"
wait "$criu_pid" 2>/dev/null || true
criu_pid=''
gone "$pid"

printf '%255s\n' '' >"$status"
step 'restore it on demand: it runs before its memory has arrived' \
	"$gpucr" restore --wait --timeline "$work/timeline" --criu "$criu" "$store" second
passes 2
echo "   every byte of its memory verified after the restore"

[ -z "${TIMELINE:-}" ] || cp "$work/timeline.svg" "$TIMELINE"
kill "$pid"
gone "$pid"
step 'take it to the bucket, with what the restore has learnt' "$gpucr" sync "$store" second
step 'unmount' "$gpucr" umount "$mnt"
[ ! -e "$store/daemon.sock" ] || die 'the daemon is still there'

step 'a second node, which has nothing yet' "$gpucr" init --remote "s3://checkpoints/demo?endpoint=$endpoint" "$store2"
step 'mount it there' "$gpucr" mount "$store2" "$mnt2"
printf '%255s\n' '' >"$status"
step 'restore the process there, from the bucket' "$gpucr" restore --wait --criu "$criu" "$store2" second
passes 2
echo "   every byte of its memory verified after the restore on the second node"
kill "$pid"
pid=''
step 'unmount' "$gpucr" umount "$mnt2"
printf '\ndone in %s s\n' "$(seconds "$total")"
