#!/usr/bin/env bash
# Puts a working CRIU >= 4.2 at build/criu/criu and prints its version.
#
# Order of preference: $CRIU; the one an earlier run left; the system's own; Debian's newest package. The last is
# fetched, with every library it needs, through the Debian mirror this machine's apt already uses, into private list and
# cache folders; criu is then bound to those libraries by interpreter and rpath. Nothing is installed: the system's libc
# stays as it is.
set -euo pipefail

need=4.2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=$root/build/criu

die() { echo "criu.sh: $1" >&2; [ $# -lt 2 ] || echo "hint: $2" >&2; exit 1; }

# version PROGRAM prints its version, or nothing when it does not run here.
version() { { "$1" --version 2>/dev/null || true; } | sed -n 's/^Version: *//p' | head -n1; }

# enough VERSION
enough() { [ -n "$1" ] && [ "$(printf '%s\n' "$need" "$1" | sort -V | head -n1)" = "$need" ]; }

# link PROGRAM makes build/criu/criu stand for a program that lives elsewhere.
link() {
	rm -rf "$dir" && mkdir -p "$dir"
	ln -s "$(realpath "$1")" "$dir/criu"
	echo "criu $2 ($1)"
}

mkdir -p "$root/build"
exec 9>"$root/build/.criu.lock"
flock 9

if [ -n "${CRIU:-}" ]; then
	[ -x "$CRIU" ] || die "CRIU=$CRIU is not a program" "give the path of a criu >= $need, or unset CRIU"
	v=$(version "$CRIU")
	enough "$v" || die "CRIU=$CRIU is version '$v', and $need is needed" "give the path of a newer one, or unset CRIU"
	[ "$(realpath "$CRIU")" = "$(realpath -m "$dir/criu")" ] || { link "$CRIU" "$v"; exit 0; }
fi

if [ -x "$dir/criu" ]; then
	v=$(version "$dir/criu")
	enough "$v" && { echo "criu $v ($dir/criu)"; exit 0; }
fi

if system=$(PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v criu); then
	v=$(version "$system")
	enough "$v" && { link "$system" "$v"; exit 0; }
	echo "the system's criu is ${v:-not able to run}, $need is needed; fetching Debian's newest" >&2
fi

for tool in apt-get dpkg; do
	command -v $tool >/dev/null ||
		die "no criu >= $need here, and no $tool to fetch one with" \
			"build criu $need or newer and set CRIU=/path/to/criu"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{parts,lists/partial,cache/archives/partial,unpacked}

# apt prints the address of each source it is set up with, whichever format it was written in; what stands before
# /dists/ is the mirror.
mirrors=$(apt-get update --print-uris 2>/dev/null | sed -nE "s,^'([^']+)/dists/[^']*/InRelease'.*,\1,p" |
	grep -v security | sort -u || true)
[ -n "$mirrors" ] ||
	die "apt has no package source" "add a Debian mirror to the apt configuration, or set CRIU=/path/to/criu"

opts=(-oDir::Etc::sourcelist=/dev/null -oDir::Etc::sourceparts="$work/parts" -oDir::State::Lists="$work/lists"
	-oDir::Cache="$work/cache"
	-oDir::State::status=/dev/null -oAPT::Install-Recommends=0 -oAPT::Sandbox::User=root -oAPT::Update::Error-Mode=any
	-oAcquire::Retries=1 -oAcquire::http::Timeout=30 -oAcquire::Languages=none)
signed=
for k in /usr/share/keyrings/debian-archive-keyring.gpg /usr/share/keyrings/debian-archive-keyring.pgp; do
	[ ! -r "$k" ] || { signed="Signed-By: $k"; break; }
done

# fetch MIRROR SUITE downloads the packages, or says why not.
fetch() {
	printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n%s\n' "$1" "$2" "$signed" >"$work/parts/debian.sources"
	apt-get "${opts[@]}" update >"$work/log" 2>&1 || return 1
	local v
	v=$(apt-cache "${opts[@]}" policy criu | sed -n 's/^ *Candidate: *//p')
	enough "$v" || { echo "$2 has criu ${v:-none}" >"$work/log"; return 1; }
	apt-get "${opts[@]}" -y --download-only install criu patchelf >"$work/log" 2>&1
}

found=
for suite in ${SUITE:-testing unstable}; do
	while read -r mirror; do
		if fetch "$mirror" "$suite"; then found=$suite; break 2; fi
		echo "debian $suite: $(grep -E '^[EW]:|has criu' "$work/log" | head -n1)" >&2
		rm -rf "$work"/lists/* && mkdir -p "$work/lists/partial"
	done <<<"$mirrors"
done
[ -n "$found" ] ||
	die "cannot fetch criu >= $need from Debian" "check that apt-get update works, or set CRIU=/path/to/criu"

for d in "$work"/cache/archives/*.deb; do dpkg -x "$d" "$work/unpacked"; done
program=$(find "$work/unpacked" -path '*/sbin/criu' | head -n1)
loader=$(find "$work/unpacked" -name 'ld-linux*.so.*' -path '*/lib/*' | head -n1)
[ -n "$program" ] && [ -n "$loader" ] ||
	die "Debian's criu package has another layout than expected" "set CRIU=/path/to/criu"
libs=$(dirname "$loader")

new=$work/criu
mkdir -p "$new/lib"
"$loader" --library-path "$libs" --list "$program" | awk '/=> \//{print $3}' | xargs -I{} cp -L {} "$new/lib/"
cp -L "$loader" "$new/lib/"
cp "$program" "$new/criu"
"$loader" --library-path "$libs" "$work/unpacked/usr/bin/patchelf" \
	--set-interpreter "$dir/lib/$(basename "$loader")" --force-rpath --set-rpath "$dir/lib" "$new/criu"
rm -rf "$dir" && mv "$new" "$dir"
v=$(version "$dir/criu")
enough "$v" || die "the criu fetched from Debian $found does not run here" "set CRIU=/path/to/criu"
echo "criu $v ($dir/criu, from Debian $found)"
