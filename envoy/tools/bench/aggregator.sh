#!/usr/bin/env bash
# Installs and builds what the aggregator's benchmark needs, then runs it. Arguments go to the program.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

help_of weir-bench-aggregator envoy/tools/bench/weir-bench-aggregator/main.rs "$@"
WEIR_REDIS_SERVER="$("$root/envoy/tools/install/tool.sh" redis-server)"
WEIR_MARIADBD="$("$root/envoy/tools/install/databases.sh" mariadb)"
log "building the aggregator and the benchmark"
cargo build "${locked[@]}" --release -p weir-aggregator -p weir-envoy --bin weir-aggregator --bin weir-bench-aggregator

export WEIR_REDIS_SERVER WEIR_MARIADBD
export WEIR_AGGREGATOR_BIN="$root/target/release/weir-aggregator"
exec target/release/weir-bench-aggregator "$@"
