#!/usr/bin/env bash
# packages.sh VERSION makes build/packages/gpucr-fs_VERSION_amd64.deb and gpucr-fs-VERSION.x86_64.rpm of what make build
# and make plugin have built.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The last version whose modules are all on the public module proxy; it is no dependency of the program.
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.1
# What cobra writes manual pages with; the program is built without it.
md2man=github.com/cpuguy83/go-md2man/v2@v2.0.7

version=${1#v}
# A version begins with a digit. A commit without a tag becomes one of before the first release.
[[ $version == [0-9]*.* ]] || version=0.0.0~$version
go=${GO:-go}
out=build/packages root=build/packages/root
rm -rf "$out"
mkdir -p "$root/usr/share/man/man1"

for program in gpucr-fs gpucr-runc gpucr-cuda; do
	install -D -m 755 "bin/$program" "$root/usr/bin/$program"
done
install -D -m 755 build/plugin/gpucr_plugin.so "$root/usr/lib/gpucr-fs/gpucr_plugin.so"
install -D -m 644 'packaging/gpucr-fs@.service' "$root/usr/lib/systemd/system/gpucr-fs@.service"
for f in grafana.json alerts.yaml kubernetes.yaml Containerfile; do
	install -D -m 644 "packaging/$f" "$root/usr/share/gpucr-fs/$f"
done
install -D -m 644 LICENSE "$root/usr/share/doc/gpucr-fs/copyright"
install -m 644 README.md CHANGELOG.md "$root/usr/share/doc/gpucr-fs/"
install -D -m 644 -t "$root/usr/share/doc/gpucr-fs/docs/" docs/*.md docs/timeline.svg

complete() { install -D -m 644 <(bin/gpucr-fs completion "$1") "$root/usr/share/$2"; }
complete bash bash-completion/completions/gpucr-fs
complete zsh zsh/site-functions/_gpucr-fs
complete fish fish/vendor_completions.d/gpucr-fs.fish

cp go.mod go.sum "$out/"
$go get -modfile="$out/go.mod" "$md2man" 2>"$out/get.log" || { cat "$out/get.log" >&2; exit 1; }
$go run -modfile="$out/go.mod" -tags man -ldflags "-X main.version=$version" ./cmd/gpucr-fs "$root/usr/share/man/man1"
gzip -n -9 "$root"/usr/share/man/man1/*.1

for kind in deb rpm; do
	VERSION=$version $go run "$nfpm" package --config packaging/nfpm.yaml --packager "$kind" --target "$out/"
done
ls -l "$out"/*.deb "$out"/*.rpm
