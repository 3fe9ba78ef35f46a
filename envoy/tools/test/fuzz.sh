#!/usr/bin/env bash
# fuzz.sh [--seconds N] [TARGET...]: runs a fuzzer on parsers, each target (such as core/key) for N seconds (30); all of them by default.
#
# The fuzzer starts from the inputs in aggregator/fuzz/corpus, and continues where its last run ended: target/fuzz/corpus keeps what
# reached new code. An input that breaks a target is left in target/fuzz/crashes. Add such an input, named by what it
# shows, to aggregator/fuzz/corpus once it is mended: the tests run those, at most ten of each target.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

corpus="$root/aggregator/fuzz/corpus"
work="$root/target/fuzz"
# Inputs are short, so that they can be read.
max_bytes=4096
seconds=30
targets=()

all_targets() { (cd "$corpus" && printf '%s\n' */*); }

while (($#)); do
    case "$1" in
    --seconds) seconds="${2:?--seconds needs a number}"; shift ;;
    -h | --help) sed -n '2,/^source/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit ;;
    -*) die "there is no option $1." "There is --seconds N." ;;
    *)
        [[ "$1" == */* && -d "$corpus/$1" ]] || die "there is no target $1." "There are: $(all_targets | tr '\n' ' ')"
        targets+=("$1")
        ;;
    esac
    shift
done
[[ "$seconds" =~ ^[1-9][0-9]*$ ]] || die "--seconds $seconds is no number of seconds." "Try --seconds 30."
((${#targets[@]})) || mapfile -t targets < <(all_targets)

# The address sanitizer is an unstable option; RUSTC_BOOTSTRAP lets a stable compiler use it.
if rustup toolchain list 2>/dev/null | grep -q '^nightly'; then
    export RUSTUP_TOOLCHAIN=nightly
else
    export RUSTC_BOOTSTRAP=1
fi
host="$(rustc -vV | sed -n 's/^host: //p')"
# What libFuzzer needs of the compiler: counters of edges, the values of comparisons, and checks that end the program.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
    -Zsanitizer=address -Cdebug-assertions -Ccodegen-units=1"
log "building the targets"
# Named, the host's target keeps the flags from what runs while building.
RUSTFLAGS="$flags" cargo build --quiet "${locked[@]}" --release -p weir-fuzz --features libfuzzer --bin weir-fuzz \
    --target "$host" --target-dir "$work/build"

# SQLite is one file made of many, and has variables of one name in several places.
export ASAN_OPTIONS="detect_odr_violation=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"

failed=()
for target in "${targets[@]}"; do
    log "$target, for $seconds s"
    log="$work/${target//\//-}.log"
    mkdir -p "$work/corpus/$target" "$work/crashes/$target"
    if "$work/build/$host/release/weir-fuzz" --target="$target" "$work/corpus/$target" "$corpus/$target" \
        -artifact_prefix="$work/crashes/$target/" -max_len="$max_bytes" -timeout=5 -rss_limit_mb=2048 -verbosity=0 \
        -print_final_stats=1 -max_total_time="$seconds" >"$log" 2>&1; then
        sed -n 's/^stat::\(number_of_executed_units\|new_units_added\|peak_rss_mb\): */  \1 /p' "$log" >&2
    else
        tail -n 40 "$log" >&2
        failed+=("$target")
    fi
done
((${#failed[@]} == 0)) || die "broken by some input: ${failed[*]}." "The inputs are in $work/crashes."
log "no input broke a target"
