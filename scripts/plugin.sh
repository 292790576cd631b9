#!/usr/bin/env bash
# Builds the CRIU plugin for AMD GPUs: plugin.sh DIR [HOOKS]
#
# DIR/gpucr_plugin.so is replaced at once when it is complete. HOOKS is the number of hooks of the CRIU it is for: 13
# for CRIU 4.2, 15 for CRIU's development branch after it. $CC is the compiler.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=${1:?usage: plugin.sh DIR [HOOKS]}
hooks=${2:-13}
mkdir -p "$dir"
new=$(mktemp "$dir/.gpucr_plugin.XXXXXX")
trap 'rm -f "$new"' EXIT
# Hidden, because the criu binary's own functions take the calls of those with the same name. Never unloaded: a task
# runs on after CRIU's dlclose.
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -DCRIU_HOOKS="$hooks" -shared -fPIC -fvisibility=hidden \
	-Wl,-z,nodelete -Wl,-z,relro -o "$new" "$root"/restore/plugin/src/*.c
chmod 755 "$new"
mv "$new" "$dir/gpucr_plugin.so"
