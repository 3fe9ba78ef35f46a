#!/usr/bin/env bash
# Installs and builds what a whole Weir needs, then runs it. Arguments go to the launcher.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

help_of weir-up envoy/tools/run/weir-up/options.rs "$@"
ENVOY_BIN="$("$root/envoy/tools/install/envoy.sh")"
log "Envoy: $ENVOY_BIN"
"$root/envoy/tools/build/filter.sh"
log "building the aggregator and the launcher"
cargo build "${locked[@]}" -p weir-aggregator -p weir-envoy --bin weir-aggregator --bin weir-up

export ENVOY_BIN
export WEIR_AGGREGATOR_BIN="$root/target/debug/weir-aggregator"
export WEIR_FILTER_WASM="$root/target/weir-filter.wasm"
exec "$root/target/debug/weir-up" "$@"
