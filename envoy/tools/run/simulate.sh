#!/usr/bin/env bash
# Builds the simulator and runs it. Arguments go to the program.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

help_of weir-simulate examples/simulator/src/bin/weir-simulate/main.rs "$@"
exec cargo run --quiet "${locked[@]}" -p weir-simulator --bin weir-simulate -- "$@"
