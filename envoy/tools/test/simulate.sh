#!/usr/bin/env bash
# Simulates every scenario at one seed, twice with the same bytes, then worlds of chance that are the same each time, some of them with
# several faults at once, and those that have failed. So a commit passes or fails each time that it is tested.
# With `--fresh FACTOR` it simulates new worlds instead, FACTOR times as many as by default, and goes on after one that fails. Each first
# seed is printed, and a failure prints the command that repeats it.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

worlds=1000
wild=400
crowded=250
control=600
# Worlds that have failed: a scenario, and its seeds.
found=(
    "wild 500282 1568705404 3741155536 3741155540 3741155707"
    "crowded 900064 900096 900215 1553085847"
)
found_control="2535349441 3044198152 3044198328 3367779104 5001007"

cargo_build -p weir-simulator
simulate="$root/target/debug/weir-simulate"
results="$root/target/simulate"
mkdir -p "$results"

if [[ "${1:-}" == --fresh ]]; then
    factor="${2:-1}"
    failed=()
    for scenario in random:$worlds wild:$wild crowded:$crowded; do
        log "simulating ${scenario%:*}: $((${scenario#*:} * factor)) fresh worlds"
        "$simulate" --scenario "${scenario%:*}" --runs "$((${scenario#*:} * factor))" --out "$results" || failed+=("${scenario%:*}")
    done
    log "simulating live control: $((control * factor)) fresh worlds"
    "$simulate" --control --runs "$((control * factor))" || failed+=("live control")
    ((${#failed[@]} == 0)) || die "Worlds failed: ${failed[*]}." "The commands that repeat them are above."
    exit 0
fi

log "simulating every scenario at seed 1"
"$simulate" --seed 1 --json --out "$results" >"$results/first.jsonl"
log "simulating them again: the same seed gives the same bytes"
"$simulate" --seed 1 --json --out "$results" >"$results/second.jsonl" 2>/dev/null
cmp "$results/first.jsonl" "$results/second.jsonl"
log "simulating $worlds worlds of chance"
"$simulate" --scenario random --seed 1 --runs "$worlds" --out "$results"
log "simulating $wild worlds with several faults at once"
"$simulate" --scenario wild --seed 1 --runs "$wild" --out "$results"
log "simulating $crowded worlds with keys that leave the tables"
"$simulate" --scenario crowded --seed 1 --runs "$crowded" --out "$results"
log "simulating the worlds that have failed"
for worlds_found in "${found[@]}"; do
    read -r scenario seeds <<<"$worlds_found"
    for seed in $seeds; do
        "$simulate" --scenario "$scenario" --seed "$seed" --out "$results"
    done
done
log "simulating the worlds of live control that have failed"
for seed in $found_control; do
    "$simulate" --control --seed "$seed"
done
log "simulating live control: $control worlds"
"$simulate" --control --seed 1 --runs "$control"
