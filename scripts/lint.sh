#!/usr/bin/env bash
# Formatting, vet, staticcheck and shell syntax. Prints what is wrong and fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2
bad=0

unformatted=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 -r gofmt -l)
[ -z "$unformatted" ] || { echo "gofmt would change:" && echo "$unformatted"; bad=1; }

go vet ./... || bad=1
go run "$staticcheck" ./... || bad=1
while IFS= read -r -d '' f; do
	bash -n "$f" || bad=1
done < <(git ls-files -z --cached --others --exclude-standard '*.sh' .ci/run)
exit $bad
