#!/usr/bin/env bash
# Installs and builds what the filter's benchmark needs, then runs it. Arguments go to the program.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

help_of weir-bench-filter envoy/tools/bench/weir-bench-filter/main.rs "$@"
ENVOY_BIN="$("$root/envoy/tools/install/envoy.sh")"
"$root/envoy/tools/build/filter.sh"
log "building the no-op filter that Weir is compared with"
"$root/envoy/tools/build/wasm-cargo.sh" build "${locked[@]}" --profile filter \
    --manifest-path envoy/tools/bench/noop-filter/Cargo.toml --target-dir target/noop-filter
log "building the floors: the host calls of a decision without the decision"
"$root/envoy/tools/build/wasm-cargo.sh" build "${locked[@]}" --profile filter \
    --manifest-path envoy/tools/bench/floor-filter/Cargo.toml --target-dir target/floor-filter
if [[ " $* " == *" --native"* ]]; then "$root/envoy/tools/build/native.sh"; fi
log "building the aggregator and the benchmark"
# As the tests build them: of the programs, only Envoy and the filter are measured, with --peers also the aggregator.
cargo build "${locked[@]}" -p weir-aggregator -p weir-envoy -p weir-build --bins
aggregator_profile=debug
if [[ " $* " == *" --peers"* ]]; then
    cargo build "${locked[@]}" --release -p weir-aggregator --bin weir-aggregator
    aggregator_profile=release
fi
target/debug/weir-wasm --keep proxy_on_context_create,proxy_on_request_headers,proxy_on_delete \
    target/noop-filter/wasm32-wasip1/filter/weir_noop_filter.wasm target/weir-noop-filter.wasm

target/debug/weir-wasm --keep proxy_on_memory_allocate,proxy_on_configure,proxy_on_request_headers \
    target/floor-filter/wasm32-wasip1/filter/weir_floor_filter.wasm target/weir-floor-filter.wasm

export ENVOY_BIN
export WEIR_AGGREGATOR_BIN="$root/target/$aggregator_profile/weir-aggregator"
export WEIR_FILTER_WASM="$root/target/weir-filter.wasm"
export WEIR_FILTER_SO="$root/target/libweir_filter.so"
export WEIR_NOOP_WASM="$root/target/weir-noop-filter.wasm"
export WEIR_FLOOR_WASM="$root/target/weir-floor-filter.wasm"
exec target/debug/weir-bench-filter "$@"
