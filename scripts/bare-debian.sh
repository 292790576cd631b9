# bare-debian.sh is for scripts that try something on a bare Debian in a folder; they source it. It needs root,
# debootstrap, and the criu of make criu. When the script ends, nothing of it stays.
#
# It sets work (a scratch folder), root (the Debian's root) and criu (the folder of criu, the same inside).
# bare_debian makes the files. enter_debian gives them a mount namespace. in_debian runs a command there.

criu=$PWD/build/criu
work=$(mktemp -d)
root=$work/root
holder='' ns=''

debian_ends() {
	disown -a # nobody has to hear how they ended
	if [ -n "$ns" ]; then # all that runs in the mount namespace: with the last of it the mounts there are gone
		for p in /proc/[0-9]*; do
			[ "$(readlink "$p/ns/mnt")" != "$ns" ] || kill -9 "${p#/proc/}" 2>/dev/null || true
		done
	fi
	[ -z "$holder" ] || kill "$holder" 2>/dev/null || true
	sleep 0.5
	rm -rf --one-file-system "$work"
}
trap debian_ends EXIT

# bare_debian PACKAGES installs Debian, from where apt gets packages here, with further packages (commas between them).
bare_debian() {
	local mirror suite
	read -r mirror suite < <(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
		awk '$2 !~ /-/ && $1 ~ /debian\/?$/ {print; exit}')
	debootstrap --variant=minbase --include="libc6,libgcc-s1,$1" "$suite" "$root" "$mirror" >"$work/log" 2>&1 ||
		{ tail "$work/log" >&2; echo "debootstrap failed" >&2; exit 1; }
}

# enter_debian makes the folder the root of a mount namespace, as a machine has it: criu dumps nothing that lives in a
# chroot. criu and its libraries lie where they look for each other.
enter_debian() {
	local libraries
	libraries=$(dirname "$(readelf -p .interp "$criu/criu" | grep -o '/.*')")
	mkdir -p "$root$criu" "$root$libraries"
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
	# Whoever shares this script's namespace must never be taken for one of the folder's.
	if [ ! -e "$root/ready" ] || [ "$ns" = "$(readlink /proc/self/ns/mnt)" ]; then
		ns=''
		echo "the bare Debian has got no mount namespace of its own" >&2
		exit 1
	fi
}

in_debian() { nsenter -t "$holder" -m env -i PATH="$criu:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/root "$@"; }
