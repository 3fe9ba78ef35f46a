#!/usr/bin/env bash
# Builds the filter a second time, from a copy of the commit in another folder and with another folder of crates, and compares the
# modules byte by byte. Prints their hashes.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

[[ -z "$(git status --porcelain -- core filter Cargo.toml Cargo.lock envoy/tools)" ]] || die "the sources differ from the commit." "Commit them first."
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
copy="$work/a copy/weir"
mkdir -p "$copy" "$work/crates"
git archive HEAD | tar -x -C "$copy"
# The same downloads and settings, at another path.
ln -s "${CARGO_HOME:-$HOME/.cargo}"/* "$work/crates/"

compiled=target/wasm32-wasip1/filter/weir_filter.wasm
"$root/envoy/tools/build/filter.sh"
(cd "$copy" && CARGO_HOME="$work/crates" "$copy/envoy/tools/build/wasm-cargo.sh" build --locked -p weir-filter --profile filter)
strip=(cargo run --quiet "${locked[@]}" -p weir-build --bin weir-wasm -- "$copy/$compiled")
"${strip[@]}" "$work/weir-filter-responses.wasm" >&2
"${strip[@]}" "$work/weir-filter.wasm" --without-responses >&2
for module in weir-filter.wasm weir-filter-responses.wasm; do
    cmp "$work/$module" "target/$module" || die "$module differs between two folders." "See --remap-path-prefix in envoy/tools/build/wasm-cargo.sh."
done
(cd target && sha256sum weir-filter.wasm weir-filter-responses.wasm)
