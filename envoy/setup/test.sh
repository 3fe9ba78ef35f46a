#!/usr/bin/env bash
# Installs what the tests need, builds what they start, and runs them all. Arguments go to `cargo test`.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

ENVOY_BIN="$("$root/envoy/setup/envoy.sh")"
WEIR_FAKETIME_LIB="$("$root/envoy/setup/tool.sh" faketime)"
say "Envoy: $ENVOY_BIN"
say "building the aggregator"
cargo build "${locked[@]}" -p weir-aggregator
"$root/envoy/setup/filter.sh"

export ENVOY_BIN WEIR_FAKETIME_LIB
export WEIR_AGGREGATOR_BIN="$root/target/debug/weir-aggregator"
export WEIR_FILTER_WASM="$root/target/weir-filter.wasm"
say "running the tests"
cargo test "${locked[@]}" --workspace "$@"
