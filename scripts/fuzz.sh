#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME (default 30s) each. A failing input is kept by go under the
# package's testdata/fuzz.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

grep -rnoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sort | while IFS=: read -r file _ func; do
	target=${func#func }
	echo "== $target in $(dirname "$file")"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" "$(dirname "$file")" </dev/null
done
