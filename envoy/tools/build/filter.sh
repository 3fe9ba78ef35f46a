#!/usr/bin/env bash
# Builds target/weir-filter.wasm: compiles the filter, then keeps only the exports that it uses. A second module,
# target/weir-filter-responses.wasm, also receives responses, which costs each request three crossings. Configurations with
# responses.headers_on_allowed, a ledger, or costs from responses need it.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

log "building the filter"
"$root/envoy/tools/build/wasm-cargo.sh" build "${locked[@]}" -p weir-filter --profile filter
log "stripping its unused exports"
# A folder of its own, as the compiler of the tests may hold the lock of the other one.
strip=(cargo run --quiet "${locked[@]}" --target-dir target/build-tools -p weir-build --bin weir-wasm -- target/wasm32-wasip1/filter/weir_filter.wasm)
"${strip[@]}" target/weir-filter-responses.wasm
"${strip[@]}" target/weir-filter.wasm --without-responses
for module in target/weir-filter.wasm target/weir-filter-responses.wasm; do
    for folder in "$root" "${CARGO_HOME:-$HOME/.cargo}" "$(rustc --print sysroot)"; do
        ! grep -qaF "$folder" "$module" || die "$module contains the path $folder." "Remap it in envoy/tools/build/wasm-cargo.sh."
    done
done
