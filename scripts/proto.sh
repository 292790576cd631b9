#!/usr/bin/env bash
# Generates the Go code of every .proto beside it, with protoc from PATH and the plugin version that go.mod pins.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p build
go build -o build/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go
git ls-files -z --cached --others --exclude-standard '*.proto' |
	xargs -0 -r protoc --plugin=protoc-gen-go=build/protoc-gen-go --go_out=. --go_opt=module=github.com/gpucr/gpucr-fs
