#!/usr/bin/env bash
# test-packages.sh installs build/packages/*.deb on a bare Debian in a folder, uses it as an operator does, and removes
# it. It needs root, /dev/fuse, debootstrap and the criu of make criu. Nothing stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }
fail() { echo "test-packages.sh: $*" >&2; exit 1; }

deb=$(ls build/packages/gpucr-fs_*_amd64.deb)
pids=()
. scripts/bare-debian.sh
finish() {
	for p in "${pids[@]}"; do kill "$p" 2>/dev/null || true; done
	debian_ends
}
trap finish EXIT

say "a bare Debian, from where apt gets packages here"
bare_debian iptables
enter_debian
cp "$deb" "$root/tmp/"
# A program to be dumped: it counts in a file.
cc -O2 -static -o "$root/usr/local/bin/count" -x c - <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>
int main(void) {
	/* It has nothing open of this machine's, and a session of its own. */
	if (fork()) return 0;
	setsid();
	for (int fd = 0; fd < 256; fd++) close(fd);
	open("/dev/null", O_RDWR);
	open("/tmp/out", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	dup(1);
	size_t n = 64 << 20;
	unsigned char *p = malloc(n);
	for (size_t i = 0; i < n; i++) p[i] = (i >> 12) + i * 31;
	for (unsigned long k = 0;; k++) {
		for (size_t i = 0; i < n; i += 4096)
			if (p[i] != (unsigned char)((i >> 12) + i * 31)) { puts("wrong memory"); fflush(stdout); return 1; }
		FILE *f = fopen("/tmp/count.new", "w");
		fprintf(f, "%lu\n", k);
		fclose(f);
		rename("/tmp/count.new", "/tmp/count");
		usleep(50000);
	}
}
C
goes_on() { # the program counts
	local a b
	a=$(cat "$root/tmp/count")
	for _ in $(seq 100); do
		b=$(cat "$root/tmp/count")
		[ "$b" -le "$a" ] || return 0
		sleep 0.1
	done
	fail "the program does not go on"
}

say "install $(basename "$deb")"
in_debian dpkg -i "/tmp/$(basename "$deb")"
in_debian gpucr-fs version
in_debian gpucr-runc --help >/dev/null 2>&1 || true # there is no runtime to ask
[ -x "$root/usr/lib/gpucr-fs/gpucr_plugin.so" ] || fail "the plugin is missing"
[ "$(in_debian gpucr-fs plugin-dir)" = /usr/lib/gpucr-fs ] || fail "the plugin is not found"
gzip -t "$root"/usr/share/man/man1/*.gz
if command -v systemd-analyze >/dev/null; then
	# The program of the unit is not on this machine, but in the folder.
	sed "s|/usr/bin/gpucr-fs|$root/usr/bin/gpucr-fs|" "$root/usr/lib/systemd/system/gpucr-fs@.service" \
		>"$work/gpucr-fs@web.service"
	systemd-analyze verify --man=no "$work/gpucr-fs@web.service" 2>&1 | grep 'gpucr-fs@' &&
		fail "systemd does not like the unit"
fi

say "the unit's command, which tells when the mount serves"
unit=$root/usr/lib/systemd/system/gpucr-fs@.service
mkdir -p "$root/run"
in_debian sh -ec 'STORE=/var/lib/gpucr-fs/web DIR=/images/web; mkdir -p $STORE $DIR; gpucr-fs init $STORE'
start=$(sed -n 's/^ExecStart=//p' "$unit" | sed 's|${STORE}|/var/lib/gpucr-fs/web|; s|${DIR}|/images/web|')
python3 - "$root/run/notify" >"$work/notify" <<'P' &
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(120)
while True:
    word = s.recv(4096).decode()
    print(word, flush=True)
    if "STOPPING" in word: break
P
pids+=($!)
for _ in $(seq 100); do [ -S "$root/run/notify" ] && break; sleep 0.1; done
nsenter -t "$holder" -m env -i PATH="$criu:/usr/sbin:/usr/bin" NOTIFY_SOCKET=/run/notify $start >"$work/unit.log" 2>&1 &
unit_pid=$!
pids+=("$unit_pid")
for _ in $(seq 200); do grep -q READY=1 "$work/notify" && break; sleep 0.1; done
grep -q READY=1 "$work/notify" || { cat "$work/unit.log" >&2; fail "the unit's command does not say that it is ready"; }
in_debian sh -c '[ -d /images/web/.checkpoints ]' || fail "nothing is mounted"
in_debian /usr/local/bin/count
for _ in $(seq 100); do [ -s "$root/tmp/count" ] && break; sleep 0.1; done
pid=$(pgrep -f '^/usr/local/bin/count$')
in_debian gpucr-fs dump /var/lib/gpucr-fs/web one -t "$pid"
# In pid namespaces of their own: what a dump has ended is a zombie where the first process here reaps late.
in_debian gpucr-fs restore --own-pids --prefetch-rate 1MiB /var/lib/gpucr-fs/web one
goes_on
say "the unit is stopped while memory still follows: the process goes on"
kill "$unit_pid"
wait "$unit_pid" || fail "the unit's command ended with $?: $(cat "$work/unit.log")"
grep -q STOPPING=1 "$work/notify" || fail "the unit's command did not say that it stops"
goes_on
pid=$(pgrep -f '^/usr/local/bin/count$') || fail "the process is gone: $(cat "$root/tmp/out")"
kill -9 "$pid"

say "from /etc/fstab"
in_debian mkdir -p /images
in_debian gpucr-fs init /var/lib/gpucr-fs/store
echo '/var/lib/gpucr-fs/store /images gpucr-fs nofail,cache-size=32MiB 0 0' >>"$root/etc/fstab"
in_debian mount /images
in_debian mount -a # there already
in_debian /usr/local/bin/count
sleep 0.5
goes_on
pid=$(pgrep -f '^/usr/local/bin/count$')
in_debian gpucr-fs dump /var/lib/gpucr-fs/store web -t "$pid"
for _ in 1 2; do
	in_debian gpucr-fs restore --own-pids --wait /var/lib/gpucr-fs/store web
	goes_on
	kill -9 "$(pgrep -f '^/usr/local/bin/count$')"
	sleep 0.2
done
[ "$(in_debian sh -c 'stat -c %s /images/inventory.img')" -gt 0 ] || fail "the mount does not show the last checkpoint"
in_debian umount /images

say "remove"
in_debian dpkg -r gpucr-fs
for f in /usr/bin/gpucr-fs /usr/sbin/mount.gpucr-fs /usr/lib/gpucr-fs; do
	[ ! -e "$root$f" ] || fail "$f stays"
done
[ -e "$root/var/lib/gpucr-fs/store/config.json" ] || fail "the store went with the package"
say "all is well"
