#!/usr/bin/env bash
# Runs what the release workflow runs, with stand-ins for docker, cosign and the push of the chart that record how they are called.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

release="$root/envoy/tools/release"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# expect WHAT ACTUAL EXPECTED
expect() { [[ "$2" == "$3" ]] || die "$1: found '$2'" "expected '$3'"; }
# refuses WHAT COMMAND...
refuses() { ! "${@:2}" >/dev/null 2>&1 || die "$1 is accepted" "${*:2}"; }

version="$("$release/version.sh")"
expect "the version of its tag" "$("$release/version.sh" "v$version")" "$version"
refuses "a tag of another version" "$release/version.sh" v999.0.0

cat >"$work/changelog.md" <<'PAGE'
# Changelog
## [Unreleased]
## [1.2.0] - 2026-01-02

### Added

- One thing.
## [1.1.0]
- Another.
[1.2.0]: https://example.com
PAGE
expect "a section" "$("$release/notes.sh" 1.2.0 "$work/changelog.md")" $'### Added\n\n- One thing.'
expect "the last section" "$("$release/notes.sh" 1.1.0 "$work/changelog.md")" "- Another."
refuses "an empty section" "$release/notes.sh" Unreleased "$work/changelog.md"
refuses "a section that is missing" "$release/notes.sh" 1.2 "$work/changelog.md"
[[ "$("$release/notes.sh" "$version")" == *"- "* ]] || die "CHANGELOG.md does not list what $version has" "expected a section with a list"

mkdir "$work/bin"
cat >"$work/bin/docker" <<'STUB'
#!/usr/bin/env bash
# Writes what buildx writes: digests, and the files of an image.
echo "docker $*" >>"$WEIR_CALLS"
image=""
while (($#)); do
    case "$1" in
    --metadata-file) echo "{\"containerimage.digest\": \"sha256:$(basename "$2" | sha256sum | cut -c1-64)\"}" >"$2" ;;
    --output) [[ "$2" != type=local,dest=* ]] || image="${2#type=local,dest=}" ;;
    inspect) [[ "$*" != *Digest* ]] || echo "sha256:$(printf '1%.0s' {1..64})" ;;
    esac
    shift
done
[[ -z "$image" ]] || touch "$image/plugin.wasm" "$image/libweir_filter.so"
# The program prints its arguments.
[[ -z "$image" ]] || { printf '#!/bin/sh\necho "$@"\n' >"$image/weir-aggregator" && chmod +x "$image/weir-aggregator"; }
STUB
cat >"$work/bin/cosign" <<'STUB'
#!/usr/bin/env bash
echo "cosign $*" >>"$WEIR_CALLS"
[[ "$1" != sign-blob ]] || echo '{}' >"$4"
STUB
chmod +x "$work/bin/docker" "$work/bin/cosign"
export WEIR_CALLS="$work/calls" PATH="$work/bin:$PATH"
registry=registry.invalid/weir

"$release/images.sh" "$registry" amd64 "$work/out"
"$release/images.sh" "$registry" arm64 "$work/out"
# No registry is reached here, so the push of the chart fails; all before it is done, and what follows is run by itself.
refuses "a registry that does not exist" "$release/publish.sh" "$registry" "$work/out"
files="$work/out/files"
"$release/sbom.py" weir-aggregator x86_64-unknown-linux-gnu >"$files/weir-aggregator-$version.cdx.json"
"$release/sbom.py" weir-filter wasm32-wasip1 >"$files/weir-filter-$version.cdx.json"
"$release/checksums.sh" "$files"
expect "the files of a release" "$(cd "$files" && echo *)" "SHA256SUMS libweir_filter-$version-linux-amd64.so libweir_filter-$version-linux-arm64.so weir-$version.tgz weir-aggregator-$version-linux-amd64.tar.gz weir-aggregator-$version-linux-arm64.tar.gz weir-aggregator-$version.cdx.json weir-compose-$version.tar.gz weir-filter-$version.cdx.json weir-filter-responses.wasm weir-filter.wasm"
expect "checksums" "$(wc -l <"$files/SHA256SUMS")" 10
archive="$files/weir-aggregator-$version-linux-arm64.tar.gz"
expect "the files of the program's archive" "$(tar -tzf "$archive" | tr '\n' ' ')" \
    "weir-aggregator completions/ completions/weir-aggregator.bash completions/weir-aggregator.fish completions/weir-aggregator.zsh "
expect "completions" "$(tar -xzOf "$archive" completions/weir-aggregator.zsh)" "completions zsh"

compose="$work/weir-compose-$version"
tar -xzf "$files/weir-compose-$version.tar.gz" -C "$work"
expect "images of the compose files" "$(sed -n 's/^ *image: \(.*weir-\)/\1/p' "$compose/docker/services.yml")" \
    "\${WEIR_IMAGES:-$registry/}weir-aggregator:\${WEIR_TAG:-$version}"$'\n'"\${WEIR_IMAGES:-$registry/}weir-filter-installer:\${WEIR_TAG:-$version}"
! grep -rnE '^ *build:|envoy/deploy|\-\-build' "$compose" >&2 || die "the packed compose files name what is not beside them" "see above"
"$release/compose.sh" "$registry" "$work"
cmp "$work/weir-compose-$version.tar.gz" "$files/weir-compose-$version.tar.gz"
expect "tags" "$(grep -c "imagetools create --tag $registry/weir-.*:$version " "$work/calls")" 5
expect "digests of the aggregator's architectures" \
    "$(grep "imagetools create --tag $registry/weir-aggregator:" "$work/calls" | grep -o @sha256: | wc -l)" 2
expect "digests of the installer's architectures" \
    "$(grep "imagetools create --tag $registry/weir-filter-installer:" "$work/calls" | grep -o @sha256: | wc -l)" 2
expect "signatures of images" "$(grep -c '^cosign sign --yes --recursive' "$work/calls")" 5
expect "attestations of the filter" "$(grep 'filter/Dockerfile' "$work/calls" | grep -vE -- '--target (installer|native)' | grep -vc -- '--provenance=false --sbom=false' || true)" 0

helm="$("$root/envoy/tools/install/kubernetes.sh")/bin/helm"
expect "the chart's images" \
    "$("$helm" template weir "$files/weir-$version.tgz" --set secret.filterToken=x --set region=eu 2>/dev/null | sed -n 's/^ *image: //p')" \
    "$registry/weir-aggregator:$version"

# Each bill names what Cargo.toml lists, and nothing that only tests use.
python3 - "$files" "$version" <<'PYTHON'
import json, sys

folder, version = sys.argv[1:]
for name, expected, absent in (("weir-aggregator", "tokio", "proptest"), ("weir-filter", "proxy-wasm", "tokio")):
    with open(f"{folder}/{name}-{version}.cdx.json") as file:
        bill = json.load(file)
    names = [one["name"] for one in bill["components"]]
    references = {bill["metadata"]["component"]["bom-ref"], *(one["bom-ref"] for one in bill["components"])}
    assert bill["metadata"]["component"]["name"] == name, bill["metadata"]
    assert expected in names and absent not in names, names
    assert all(one["ref"] in references and references >= set(one["dependsOn"]) for one in bill["dependencies"])
    for one in bill["components"]:
        assert one.get("licenses"), one
        assert one.get("hashes") or one["name"].startswith("weir-"), one
PYTHON
log "the release's scripts do what they say"
