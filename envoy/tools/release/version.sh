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
# Each of our images that Compose pulls or builds.
tags="$(sed -n 's/^ *image: .*weir-.*:\${WEIR_TAG:-\(.*\)}$/\1/p' envoy/deploy/docker/services.yml | sort -u)"
[[ "$tags" == "$version" ]] || die "the images of envoy/deploy/docker/services.yml have the tags '$tags'." "Set WEIR_TAG's default to $version."
# What people copy: commands in pages and in Dockerfiles, and images of manifests.
wrong="$(git grep -nE 'weir-(aggregator|filter|filter-responses|filter-installer):[0-9]+\.[0-9]+' | grep -vE "weir-[a-z-]+:$escaped([^0-9.]|$)" || true)"
[[ -z "$wrong" ]] || die "images have tags of another version than $version:" "$wrong"
if [[ -n "${1:-}" && "$1" != "v$version" ]]; then
    die "the tag $1 is not v$version." "Tag a commit whose Cargo.toml states the version of the tag."
fi
echo "$version"
