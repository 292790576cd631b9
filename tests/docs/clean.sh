#!/usr/bin/env bash
# clean.sh runs the commands of README and docs/ on a bare Debian in a folder: the tests of this package, built here, with
# nothing of this machine but gpucr-fs, criu and the S3 server. It needs root, /dev/fuse and debootstrap. Nothing stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

criu=$PWD/build/criu
work=$(mktemp -d)
root=$work/root
holder='' ns=''
finish() {
	disown -a
	if [ -n "$ns" ]; then # what still runs in the folder's mount namespace, which ends with it
		for p in /proc/[0-9]*; do
			[ "$(readlink "$p/ns/mnt")" != "$ns" ] || kill -9 "${p#/proc/}" 2>/dev/null || true
		done
	fi
	[ -z "$holder" ] || kill "$holder" 2>/dev/null || true
	sleep 0.5
	rm -rf --one-file-system "$work"
}
trap finish EXIT

read -r mirror suite < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
	awk '$2 !~ /-/ && $1 ~ /debian\/?$/ {print; exit}')
debootstrap --variant=minbase --include=libc6,libgcc-s1,iptables,make "$suite" "$root" "$mirror" >"$work/log" 2>&1 ||
	{ tail "$work/log" >&2; echo "clean.sh: debootstrap failed" >&2; exit 1; }

# The programs, built here, and the pages.
mkdir -p "$root/manual/tests/docs" "$root/manual/built"
go test -c -o "$root/manual/tests/docs/docs.test" ./tests/docs
DOCS_BUILD="$root/manual/built" "$root/manual/tests/docs/docs.test" -test.run '^$'
cp -r ./*.md Makefile docs "$root/manual/"
cp build/versitygw/versitygw "$root/manual/built/"
# criu with its libraries lies where it looks for them.
libraries=$(dirname "$(readelf -p .interp "$criu/criu" | grep -o '/.*')")
mkdir -p "$root$criu" "$root$libraries"

# The folder becomes the root of a mount namespace: criu dumps nothing that lives in a chroot.
unshare --mount --propagation slave sh -ec '
	mount --rbind "$1" "$1"
	mount -t proc proc "$1/proc"
	mount --rbind /sys "$1/sys"
	mount --rbind /dev "$1/dev"
	mount --bind "$2" "$1$2"
	mount --bind "$3" "$1$3"
	cd "$1"
	mkdir -p .old
	pivot_root . .old
	cd /
	umount -l /.old
	echo ready >/ready
	exec sleep 1000000' sh "$root" "$criu" "$libraries" </dev/null &
holder=$!
for _ in $(seq 100); do
	[ ! -e "$root/ready" ] || break
	sleep 0.1
done
ns=$(readlink "/proc/$holder/ns/mnt")
[ -e "$root/ready" ] && [ "$ns" != "$(readlink /proc/self/ns/mnt)" ] || { ns=''; echo "clean.sh: no namespace" >&2; exit 1; }

nsenter -t "$holder" -m env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CRIU="$criu/criu" \
	VERSITYGW=/manual/built/versitygw DOCS_BUILT=/manual/built \
	sh -ec 'cd /manual/tests/docs && exec ./docs.test -test.v -test.timeout 20m \
		-test.run "^Test(Readme|Operations|Buckets|Encryption|AMD|NVIDIA|ContainersPage)$"'
