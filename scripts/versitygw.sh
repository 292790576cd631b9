#!/usr/bin/env bash
# Puts versitygw, an S3 server for tests, at build/versitygw/versitygw. It is built by Go from the module proxy, outside
# of this module, so that its many dependencies are none of ours. VERSITYGW=/path takes another one.
set -euo pipefail

module=github.com/versity/versitygw
version=v1.8.0
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=$root/build/versitygw
go=${GO:-go}

die() { echo "versitygw.sh: $1" >&2; [ $# -lt 2 ] || echo "hint: $2" >&2; exit 1; }

# is PROGRAM says whether it was built from the version that is wanted.
is() { "$go" version -m "$1" 2>/dev/null | grep -q "^[[:space:]]mod[[:space:]]$module[[:space:]]$version[[:space:]]"; }

if [ -n "${VERSITYGW:-}" ]; then
	[ -x "$VERSITYGW" ] ||
		die "VERSITYGW=$VERSITYGW is not a program" "give the path of a versitygw, or unset VERSITYGW"
	echo "versitygw at $VERSITYGW"
	exit 0
fi

mkdir -p "$root/build"
exec 9>"$root/build/.versitygw.lock"
flock 9
if ! is "$dir/versitygw"; then
	echo "building versitygw $version, which takes a few minutes" >&2
	mkdir -p "$dir"
	# Elsewhere than in this module, whose go.mod would decide about its dependencies.
	(cd / && GOFLAGS= CGO_ENABLED=0 GOBIN=$dir "$go" install -trimpath "$module/cmd/versitygw@$version") ||
		die "cannot build versitygw $version" \
			"check that the Go module proxy answers, or set VERSITYGW=/path/to/versitygw"
fi
echo "versitygw $version ($dir/versitygw)"
