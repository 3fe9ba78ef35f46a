#!/usr/bin/env bash
# Installs and builds what the filter's benchmark needs, then runs it. Arguments go to the program.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

help_of weir-bench-filter envoy/tools/bench/weir-bench-filter/main.rs "$@"
ENVOY_BIN="$("$root/envoy/tools/install/envoy.sh")"
WEIR_WRK="$("$root/envoy/tools/install/tool.sh" wrk)"
"$root/envoy/tools/build/filter.sh"
say "building the no-op filter that Weir is compared with"
"$root/envoy/tools/build/wasm-cargo.sh" build "${locked[@]}" --profile filter \
    --manifest-path envoy/tools/bench/noop-filter/Cargo.toml --target-dir target/noop-filter
say "building the aggregator and the benchmark"
cargo build "${locked[@]}" --release -p weir-aggregator -p weir-envoy --bins
target/release/weir-wasm --keep proxy_on_context_create,proxy_on_request_headers,proxy_on_delete \
    target/noop-filter/wasm32-wasip1/filter/weir_noop_filter.wasm target/weir-noop-filter.wasm

export ENVOY_BIN WEIR_WRK
export WEIR_AGGREGATOR_BIN="$root/target/release/weir-aggregator"
export WEIR_FILTER_WASM="$root/target/weir-filter.wasm"
export WEIR_NOOP_WASM="$root/target/weir-noop-filter.wasm"
exec target/release/weir-bench-filter "$@"
