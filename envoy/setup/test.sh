#!/usr/bin/env bash
# Installs what the tests need, builds what they start, and runs them all. Arguments go to `cargo test`.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

ENVOY_BIN="$("$root/envoy/setup/envoy.sh")"
say "Envoy: $ENVOY_BIN"
WEIR_REDIS_SERVER="$("$root/envoy/setup/tool.sh" redis-server)"
WEIR_MARIADBD="$("$root/envoy/setup/databases.sh" mariadb)"
say "Redis: $WEIR_REDIS_SERVER; MariaDB: $WEIR_MARIADBD"
# MySQL is tested where it can be had; where not, its tests say that they are left out.
if mysql_root="$("$root/envoy/setup/databases.sh" mysql --build)"; then
    export WEIR_MYSQLD_ROOT="$mysql_root"
fi
say "MySQL: ${WEIR_MYSQLD_ROOT:-left out}"
say "building the aggregator"
cargo build "${locked[@]}" -p weir-aggregator
"$root/envoy/setup/filter.sh"
say "building the clock that tests move"
rustc --edition 2024 --crate-type cdylib -C opt-level=2 -C panic=abort -D warnings \
    -o target/libweir_clock_shim.so envoy/setup/clock-shim.rs

export ENVOY_BIN WEIR_REDIS_SERVER WEIR_MARIADBD
export WEIR_AGGREGATOR_BIN="$root/target/debug/weir-aggregator"
export WEIR_CLOCK_SHIM="$root/target/libweir_clock_shim.so"
export WEIR_FILTER_WASM="$root/target/weir-filter.wasm"
# Each end-to-end test keeps several processes busy: two at a time are enough for two cores.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-2}"
# Somebody who names tests wants those.
if (($# == 0)); then
    "$root/envoy/setup/simulate.sh"
fi
say "running the tests"
cargo test "${locked[@]}" --workspace --no-fail-fast "$@"
