#!/usr/bin/env bash
# clean.sh runs the commands of README and docs/ on a bare Debian in a folder: the tests of this package, built here,
# with nothing of this machine but gpucr-fs, criu and the S3 server. It needs root, /dev/fuse and debootstrap. Nothing
# stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

. scripts/bare-debian.sh
bare_debian iptables,make

# The programs, built here, and the pages.
mkdir -p "$root/manual/tests/docs" "$root/manual/built"
go test -c -o "$root/manual/tests/docs/docs.test" ./tests/docs
DOCS_BUILD="$root/manual/built" "$root/manual/tests/docs/docs.test" -test.run '^$'
cp -r ./*.md Makefile docs "$root/manual/"
cp build/versitygw/versitygw "$root/manual/built/"
enter_debian

in_debian env CRIU="$criu/criu" VERSITYGW=/manual/built/versitygw DOCS_BUILT=/manual/built \
	sh -ec 'cd /manual/tests/docs && exec ./docs.test -test.v -test.timeout 20m \
		-test.run "^Test(Readme|Operations|Buckets|Encryption|AMD|NVIDIA|ContainersPage)$"'
