#!/usr/bin/env bash
# Simulates for about a minute: every scenario at one seed, twice with the same bytes, then what fresh seeds make up.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

fresh_seconds=40

cargo build "${locked[@]}" -p weir-simulator
simulate="$root/target/debug/weir-simulate"
results="$root/target/simulate"
mkdir -p "$results"

say "simulating every scenario at seed 1"
"$simulate" --seed 1 --json --out "$results" >"$results/first.jsonl"
say "simulating them again: the same seed gives the same bytes"
"$simulate" --seed 1 --json --out "$results" >"$results/second.jsonl" 2>/dev/null
cmp "$results/first.jsonl" "$results/second.jsonl"
# Fresh for each content of the repository, and the same for everybody who has that: what fails here fails again.
tree="$(git -C "$root" rev-parse 'HEAD^{tree}' 2>/dev/null || echo 1)"
seed="$((16#${tree:0:10}))"
say "simulating $fresh_seconds seconds of fresh seeds from $seed on"
"$simulate" --scenario random --seed "$seed" --for "$fresh_seconds" --out "$results"
