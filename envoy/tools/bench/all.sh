#!/usr/bin/env bash
# Runs all benchmarks that pages quote, and writes their results into results.json and the pages. Arguments are rate-limit services to
# compare with, as `bench-filter --peers` takes them.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

results="$root/envoy/tools/bench/results.json"
"$root/envoy/tools/bench/filter.sh" --results "$results"
"$root/envoy/tools/bench/filter.sh" --native --results "$results"
"$root/envoy/tools/bench/filter.sh" --rounds 8 --results "$results" --peers "$@"
"$root/envoy/tools/bench/aggregator.sh" --results "$results"
"$root/envoy/tools/bench/page.py"
