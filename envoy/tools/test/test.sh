#!/usr/bin/env bash
# Installs what the tests need, builds what they start, and runs them all. Arguments go to `cargo test`.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then exec cargo test --help; fi
logs="$root/target/tests"
mkdir -p "$logs"

# Programs that the tests start and that are not built here, as variables.
find_programs() {
    local install="$root/envoy/tools/install" name
    ENVOY_BIN="$("$install/envoy.sh")"
    WEIR_REDIS_SERVER="$("$install/tool.sh" redis-server)"
    WEIR_PROMETHEUS="$("$install/tool.sh" prometheus)"
    WEIR_MARIADBD="$("$install/databases.sh" mariadb)"
    WEIR_CHROMIUM="$("$install/browser.sh" chromium)"
    WEIR_CHROMEDRIVER="$("$install/browser.sh" chromedriver)"
    # MySQL is tested where it can be had; elsewhere its tests are left out.
    WEIR_MYSQLD_ROOT="$("$install/databases.sh" mysql --build)" || unset WEIR_MYSQLD_ROOT
    for name in ENVOY_BIN WEIR_REDIS_SERVER WEIR_PROMETHEUS WEIR_MARIADBD WEIR_CHROMIUM WEIR_CHROMEDRIVER ${WEIR_MYSQLD_ROOT:+WEIR_MYSQLD_ROOT}; do
        printf '%s=%q\n' "$name" "${!name}"
    done
}

tests=(cargo test "${locked[@]}" --workspace --no-fail-fast)
# Downloads take as long as the compiler, so both run at the same time.
find_programs >"$logs/programs" &
finding=$!
# The modules have folders of their own below target/, and the compiler of the tests often keeps one core busy alone.
{
    "$root/envoy/tools/build/filter.sh" && "$root/envoy/tools/run/playground.sh" --build-only "$root/target/playground-page"
} >"$logs/modules.log" 2>&1 &
building=$!
# With names of tests, only what these need is built.
if (($# > 0)); then
    log "building the aggregator"
    cargo_build -p weir-aggregator
else
    log "building the tests, and the programs that they start"
    "${tests[@]}" --no-run
    export WEIR_BUILT=1
fi
# It compiles while the compiler of the tests keeps one core busy, or with names of tests alone.
"$root/envoy/tools/build/native.sh" >"$logs/native.log" 2>&1 &
building_native=$!
log "building the clock that tests move"
rustc --edition 2024 --crate-type cdylib -C opt-level=2 -C panic=abort -D warnings \
    -o target/libweir_clock_shim.so envoy/tools/test/clock-shim.rs
wait "$building" || { cat "$logs/modules.log" >&2 && die "The filter or the playground could not be built." "The messages above name it."; }
wait "$building_native" || { cat "$logs/native.log" >&2 && die "The native filter could not be built." "The messages above name it."; }
wait "$finding" || die "A program that the tests start is missing." "The messages above name it."
set -a
source "$logs/programs"
set +a
sed 's/^/weir: /' "$logs/programs" >&2

export WEIR_PLAYGROUND="$root/target/playground-page/index.html"
export WEIR_AGGREGATOR_BIN="$root/target/debug/weir-aggregator"
export WEIR_CLOCK_SHIM="$root/target/libweir_clock_shim.so"
export WEIR_FILTER_WASM="$root/target/weir-filter.wasm"
export WEIR_FILTER_SO="$root/target/libweir_filter.so"
# Each end-to-end test keeps several processes busy: two at a time are enough for two cores.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-2}"

# With the native filter, scenarios that do not apply to it are left out.
without=()
if [[ "${WEIR_FILTER:-}" == native ]]; then
    while read -r name _; do without+=(--skip "$name"); done < <(grep -v '^#' envoy/tests/without-native.txt)
fi
if (($# > 0)); then
    exec "${tests[@]}" "$@"
fi
log "running the tests (those without an Envoy and the simulator beside the scenarios, which mostly wait)"
: >"$logs/failed"
# step NAME COMMAND...: runs a part of the tests, and records its name if it fails.
step() {
    "${@:2}" 2>&1 | tee "$logs/${1// /-}.log" || printf '%s\n' "$1" >>"$logs/failed"
}
# why NAME: what a part that failed printed of its failures, or else its last lines.
why() {
    local log="$logs/${1// /-}.log"
    printf '\n== %s\n' "$1"
    if grep -q '^failures:' "$log"; then
        sed -n '/^failures:/,/^test result:/p' "$log" | tail -n 150
    else
        tail -n 40 "$log"
    fi
}
{
    step "the simulator" "$root/envoy/tools/test/simulate.sh"
    log "evaluating the queries of the dashboard and the alerts"
    step "metrics" python3 "$root/envoy/tools/test/metrics.py"
    step "tests without scenarios" "${tests[@]}" --tests -- --skip scenarios::
    step "examples in documentation" "${tests[@]}" --doc
} </dev/null >"$logs/others.log" 2>&1 &
others=$!
step "scenarios" "${tests[@]}" --lib -- scenarios:: "${without[@]}"
wait "$others"
cat "$logs/others.log"
if [[ -s "$logs/failed" ]]; then
    while read -r part; do why "$part"; done <"$logs/failed" >&2
    die "These parts of the tests failed: $(paste -sd, "$logs/failed")." "Their messages are above, and in $logs/others.log."
fi
