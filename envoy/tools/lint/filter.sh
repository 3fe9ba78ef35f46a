#!/usr/bin/env bash
# Lints the filter as it is compiled for Envoy. Debian's toolchain has no clippy: there the native lint is all.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

if [[ "$("$root/envoy/tools/build/wasm-std.sh")" == rustup ]]; then
    "$root/envoy/tools/build/wasm-cargo.sh" clippy "${locked[@]}" -p weir-filter -- -D warnings
else
    log "skipping the lint for WASM: it needs rustup's wasm32-wasip1"
fi
