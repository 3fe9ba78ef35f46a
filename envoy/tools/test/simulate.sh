#!/usr/bin/env bash
# Simulates every scenario at one seed, twice with the same bytes, then worlds of chance: some that are the same each time, some of them
# with several faults at once, and some that are fresh. The first seed of the fresh ones is printed, and a failure prints the command
# that repeats it.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

worlds=800
wild=300
crowded=150
fresh=200
fresh_crowded=100
control=300
fresh_control=300
# Worlds that have failed: a scenario, and its seeds.
found=(
    "wild 500282 1568705404 3741155536 3741155540 3741155707"
    "crowded 900064 900096 900215"
)
found_control="2535349441 3044198152 3044198328 3367779104 5001007"

cargo_build -p weir-simulator
simulate="$root/target/debug/weir-simulate"
results="$root/target/simulate"
mkdir -p "$results"

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
log "simulating $fresh_crowded fresh worlds with keys that leave the tables"
"$simulate" --scenario crowded --runs "$fresh_crowded" --out "$results"
log "simulating $fresh fresh worlds of chance"
"$simulate" --scenario random --runs "$fresh" --out "$results"
log "simulating the worlds of live control that have failed"
for seed in $found_control; do
    "$simulate" --control --seed "$seed"
done
log "simulating live control: $control worlds"
"$simulate" --control --seed 1 --runs "$control"
log "simulating live control: $fresh_control fresh worlds"
"$simulate" --control --runs "$fresh_control"
