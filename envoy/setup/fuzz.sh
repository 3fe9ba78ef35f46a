#!/usr/bin/env bash
# fuzz.sh [--seconds N] [--keep] [TARGET...]: feeds parsers with what a fuzzer makes up, each target for N seconds (30).
#
# What it finds worth keeping goes to target/fuzz/corpus; with --keep the least that covers as much is then added to the
# corpus of the repository, which the tests run: up to 100 inputs and 200 KB a target. An input that breaks a target is left in target/fuzz/crashes and named.
# Which targets there are is left to aggregator/fuzz.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

cargo_fuzz_version=0.13.2
fuzz="$root/aggregator/fuzz"
work="$root/target/fuzz"
# Inputs are to be read and to stay small, and so are the corpora of the repository.
max_bytes=4096
max_inputs=100
max_corpus_bytes=204800
seconds=30
keep=false
targets=()

while (($#)); do
    case "$1" in
    --seconds) seconds="${2:?--seconds needs a number}"; shift ;;
    --keep) keep=true ;;
    -h | --help) sed -n '2,/^source/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit ;;
    -*) die "there is no option $1." "There are --seconds N and --keep." ;;
    *)
        [[ -d "$fuzz/corpus/$1" ]] || die "there is no target $1." "There are: $(ls "$fuzz/corpus" | tr '\n' ' ')"
        targets+=("$1")
        ;;
    esac
    shift
done
[[ "$seconds" =~ ^[1-9][0-9]*$ ]] || die "--seconds $seconds is no number of seconds." "Try --seconds 30."
((${#targets[@]})) || mapfile -t targets < <(ls "$fuzz/corpus")

# The sanitizer is an unstable option of the compiler; a stable one takes it when told to.
if rustup toolchain list 2>/dev/null | grep -q '^nightly'; then
    export RUSTUP_TOOLCHAIN=nightly
else
    export RUSTC_BOOTSTRAP=1
fi
PATH="$tools/cargo-fuzz/bin:$PATH"
if ! cargo fuzz --version >/dev/null 2>&1; then
    say "compiling cargo-fuzz $cargo_fuzz_version into $tools"
    cargo install --quiet --locked --root "$tools/cargo-fuzz" "cargo-fuzz@$cargo_fuzz_version" </dev/null >&2
fi

run() {
    local name="$1" fresh="$work/corpus/$1"
    shift
    mkdir -p "$fresh" "$work/crashes/$name"
    cargo fuzz run --fuzz-dir "$fuzz" --features libfuzzer --target-dir "$work/build" "$name" "$fresh" "$fuzz/corpus/$name" -- \
        -artifact_prefix="$work/crashes/$name/" -max_len="$max_bytes" -timeout=5 -rss_limit_mb=2048 -verbosity=0 \
        -print_final_stats=1 "$@"
}

# Adds the fewest and smallest inputs that reach something new.
keep() {
    local kept="$fuzz/corpus/$1"
    cargo fuzz run --fuzz-dir "$fuzz" --features libfuzzer --target-dir "$work/build" "$1" \
        "$kept" "$work/corpus/$1" -- -set_cover_merge=1 -max_len="$max_bytes" >"$work/$1.merge.log" 2>&1 ||
        die "the inputs of $1 cannot be merged." "See $work/$1.merge.log."
    prune "$kept"
    say "kept of $1: $(ls "$kept" | wc -l) inputs, $(du -bc "$kept"/* | sed -n '$s/\t.*//p') bytes"
}

# Takes inputs from a corpus that has grown too large: the smallest while they are too many, as larger ones reach more,
# then the largest while they are too long. Those written by hand stay: the fuzzer names its own by their SHA-1.
prune() {
    local order inputs bytes size input
    for order in n nr; do
        inputs="$(ls "$1" | wc -l)"
        bytes="$(du -bc "$1"/* | sed -n '$s/\t.*//p')"
        while read -r size input; do
            if [[ "$order" == n ]]; then ((inputs > max_inputs)) || break; else ((bytes > max_corpus_bytes)) || break; fi
            rm -- "$input"
            ((inputs -= 1, bytes -= size)) || true
        done < <(find "$1" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -printf '%s %p\n' | sort -k1,1"$order" -k2)
    done
}

mkdir -p "$work"
failed=()
for target in "${targets[@]}"; do
    say "$target, for $seconds s"
    if ! run "$target" -max_total_time="$seconds" >"$work/$target.log" 2>&1; then
        tail -n 40 "$work/$target.log" >&2
        failed+=("$target")
        continue
    fi
    sed -n 's/^stat::\(number_of_executed_units\|new_units_added\|peak_rss_mb\): */  \1 /p' "$work/$target.log" >&2
    if $keep; then keep "$target"; fi
done
((${#failed[@]} == 0)) || die "broken by some input: ${failed[*]}." "The inputs are in $work/crashes; add them to aggregator/fuzz/corpus once they are mended."
say "no target was broken"
