#!/usr/bin/env bash
# need.sh [PROGRAM:]PACKAGE... installs, with apt, the Debian packages whose program (or, without one, whose package) is
# missing.
set -euo pipefail

missing=()
for want in "$@"; do
	program=${want%%:*} package=${want#*:}
	case $want in
	*:*) PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || missing+=("$package") ;;
	*) dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package") ;;
	esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
	echo "need.sh: missing: ${missing[*]}" >&2
	echo "hint: install these packages, or run as root on Debian" >&2
	exit 1
fi
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "need.sh: cannot install ${missing[*]}" >&2
	exit 1
fi
