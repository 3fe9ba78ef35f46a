#!/usr/bin/env bash
# version.sh [TAG]: prints the version of the workspace. Fails if a file states another one, or if the tag is not "v" and the version.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

version="$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)"
[[ -n "$version" ]] || die "Cargo.toml states no version." "Set version in [workspace.package]."

# states FILE PATTERN: the file has the line.
states() {
    grep -qE "$2" "$1" || die "$1 does not state the version $version." "Set it there: $2"
}
escaped="${version//./\\.}"
states envoy/deploy/kubernetes/chart/Chart.yaml "^version: $escaped\$"
states envoy/deploy/kubernetes/chart/Chart.yaml "^appVersion: $escaped\$"
states aggregator/Dockerfile "^ARG VERSION=$escaped\$"
states filter/Dockerfile "^ARG VERSION=$escaped\$"
if [[ -n "${1:-}" && "$1" != "v$version" ]]; then
    die "the tag $1 is not v$version." "Tag a commit whose Cargo.toml states the version of the tag."
fi
echo "$version"
