# Every command of the repository. Run ./justw, which installs what is missing; CI calls only these recipes.

set positional-arguments

# CI builds what was committed; at a state a changed Cargo.toml may change Cargo.lock.
locked := if env("CI", "") == "" { "" } else { "--locked" }

# List the recipes.
default:
    @{{ just_executable() }} --justfile "{{ justfile() }}" --list --unsorted

# Run a whole Weir here: upstream, aggregator, Envoy with the filter. `up --help` names the options.
up *ARGS:
    @exec envoy/tools/run/up.sh "$@"

# Install what the tests need, build everything and test it: unit, property and end to end against real Envoys.
test *ARGS:
    @exec envoy/tools/test/test.sh "$@"

# Run envoy/deploy/docker-compose.yml on a Docker engine, break its parts in turn, and check limits and counts.
compose-test:
    @exec envoy/tools/compose/test.sh

# Check formatting, lints (natively and for WASM), the direction of imports, what is unused, terms, the width of pages, rendered manifests, workflows and release scripts.
lint: fmt-check
    @python3 envoy/tools/lint/test.py
    @python3 envoy/tools/lint/rooms.py
    @python3 envoy/tools/lint/unused.py
    @python3 envoy/tools/lint/words.py
    @python3 envoy/tools/lint/pages.py
    @python3 envoy/tools/lint/kubernetes.py
    @"$(envoy/tools/install/actionlint.sh)"
    @envoy/tools/release/test.sh
    cargo clippy --workspace --all-targets {{ locked }} -- -D warnings
    @envoy/tools/lint/filter.sh

# Type-check the workspace.
check:
    cargo check --workspace --all-targets

# Format the code.
fmt:
    cargo fmt --all

# Check the formatting only.
fmt-check:
    cargo fmt --all -- --check

# Check licences, advisories and sources of all dependencies (needs cargo-deny).
deny:
    @cargo deny --version >/dev/null 2>&1 || { echo "cargo-deny is missing: cargo install --locked cargo-deny" >&2; exit 1; }
    cargo deny --workspace check

# Build target/weir-filter.wasm: optimised, with no export that the filter does not use.
filter:
    @envoy/tools/build/filter.sh

# Build target/libweir_filter.so: the filter as a dynamic module of Envoy, for this machine's architecture.
native-filter:
    @envoy/tools/build/native.sh

# Measure what the filter adds to a request, beside no filter, local_ratelimit and a no-op. `bench-filter --help` names the options.
bench-filter *ARGS:
    @exec envoy/tools/bench/filter.sh "$@"

# Measure the aggregator: reports, queries, pushes, many regions on one database. `bench-aggregator --help` names the options.
bench-aggregator *ARGS:
    @exec envoy/tools/bench/aggregator.sh "$@"

# Measure all that pages quote, on a quiet machine, and write it into the pages. Services to compare with are arguments, as in `bench-filter --peers`.
bench *PEERS:
    @exec envoy/tools/bench/all.sh "$@"

# Measure the core's decision alone.
bench-core *ARGS:
    cargo bench -p weir-core "$@"

# Run the whole of Weir in one deterministic process, and check what must hold. `simulate --help` names the options.
simulate *ARGS:
    @exec envoy/tools/run/simulate.sh "$@"

# Build the simulator's page and serve it. `playground --help` names the options; `--build-only FOLDER` puts it there instead.
playground *ARGS:
    @exec envoy/tools/run/playground.sh "$@"

# Run a fuzzer on every parser that reads bytes from outside. `fuzz --help` names the options.
fuzz *ARGS:
    @exec envoy/tools/test/fuzz.sh "$@"

# Remove the tools that were installed into .tools.
clean-tools:
    rm -rf "${WEIR_TOOLS:-.tools}"
