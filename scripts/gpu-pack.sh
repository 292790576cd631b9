#!/usr/bin/env bash
# Packs build/gpu-pack: all that the show of tests/gpu needs on a bare machine with an NVIDIA GPU, PyTorch and root:
# gpucr-fs, gpucr-cuda, criu with its libraries, the show and its application. Nothing is installed there, and no
# network is used. There:
#
#     build/gpu-pack/run.sh [-cycles 20] [-runs 3] ...
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pack=$root/build/gpu-pack
criu=$root/build/criu

[ -x "$criu/criu" ] || { echo "gpu-pack.sh: no criu at $criu" >&2; echo "hint: make criu" >&2; exit 1; }

rm -rf "$pack" && mkdir -p "$pack/bin" "$pack/criu"
cd "$root"
for command in ./cmd/gpucr-fs ./cmd/gpucr-cuda ./tests/gpu; do
	CGO_ENABLED=0 ${GO:-go} build -trimpath \
		-ldflags "-s -w -X main.version=${VERSION:-dev} -X main.commit=${COMMIT:-}" \
		-o "$pack/bin/$(basename "$command")" "$command"
done
cp tests/gpu/src/app.py tests/gpu/src/matrix.py "$pack/"

# criu was bound to the folder it was made in: here its own loader starts it, wherever the pack lies.
cp -L "$criu/criu" "$pack/criu/criu"
if [ -d "$criu/lib" ]; then
	cp -rL "$criu/lib" "$pack/criu/lib"
	cat >"$pack/criu/run" <<'RUN'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here"/lib/ld-linux-*.so.* --argv0 criu --library-path "$here/lib" "$here/criu" "$@"
RUN
	chmod +x "$pack/criu/run"
else
	ln -s criu "$pack/criu/run"
fi

cat >"$pack/run.sh" <<'RUN'
#!/bin/sh
# Runs the show. criu keeps what it found out about the kernel in /run, when that is a tmpfs; otherwise every start of
# it takes longer.
here=$(dirname "$(readlink -f "$0")")
if [ "$(stat -f -c %T /run)" != tmpfs ] && command -v unshare >/dev/null; then
	exec unshare -m -- sh -c '
		old=$(mktemp -d) && mount --rbind /run "$old" && mount -t tmpfs tmpfs /run &&
		for d in "$old"/* "$old"/.[!.]*; do
			[ -d "$d" ] && mkdir -p "/run/${d##*/}" && mount --rbind "$d" "/run/${d##*/}"
		done
		exec "$0" "$@"' "$here/bin/gpu" -pack "$here" "$@"
fi
exec "$here/bin/gpu" -pack "$here" "$@"
RUN
chmod +x "$pack/run.sh"
du -sh "$pack" | cut -f1
