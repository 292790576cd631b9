#!/bin/sh
# Runs a command in a mount namespace where the simulator's devices are /dev/kfd
# and /dev/dri, and its topology is /sys/class/kfd.
#   enter.sh DIR COMMAND...     DIR: where the simulator runs
# /dev becomes a tmpfs, as devtmpfs is one for the whole machine; /sys/class and
# /sys/dev/char are folders of links into a second mount of /sys.
set -eu
dir=$1
shift
if [ "${KFDSIM_ENTERED:-}" != "$dir" ]; then
	export KFDSIM_ENTERED="$dir"
	exec unshare --mount --propagation private "$0" "$dir" "$@"
fi
ns=$dir/ns
mkdir -p "$ns"
mount -t tmpfs -o mode=755 kfdsim-ns "$ns"
mkdir "$ns/dev" "$ns/class" "$ns/char" "$ns/sys"

mount --rbind /sys "$ns/sys"
for kind in class dev/char; do
	for entry in /sys/$kind/*; do
		[ -e "$entry" ] && ln -s "$ns/sys/$kind/${entry##*/}" "$ns/${kind##*/}/"
	done
done
ln -s "$dir/sys/class/kfd" "$ns/class/kfd"
for entry in "$dir"/sys/dev/char/*; do
	ln -sf "$entry" "$ns/char/"
done
mount --bind "$ns/class" /sys/class
mount --bind "$ns/char" /sys/dev/char

dev=$ns/dev
for node in null zero full random urandom tty fuse; do
	[ -c /dev/$node ] && mknod -m 666 "$dev/$node" c $(stat -c '%Hr %Lr' /dev/$node)
done
mkdir "$dev/pts" "$dev/shm" "$dev/net" "$dev/dri"
[ -c /dev/net/tun ] && mknod -m 666 "$dev/net/tun" c 10 200
ln -s /proc/self/fd "$dev/fd"
ln -s /proc/self/fd/0 "$dev/stdin"
ln -s /proc/self/fd/1 "$dev/stdout"
ln -s /proc/self/fd/2 "$dev/stderr"
ln -s pts/ptmx "$dev/ptmx"
mount --bind /dev/pts "$dev/pts"
mount -t tmpfs -o mode=1777 kfdsim-shm "$dev/shm"
: >"$dev/kfd"
mount --bind "$dir/dev/kfd" "$dev/kfd"
for node in "$dir"/dev/dri/*; do
	: >"$dev/dri/${node##*/}"
	mount --bind "$node" "$dev/dri/${node##*/}"
done
mount --rbind "$dev" /dev
exec "$@"
