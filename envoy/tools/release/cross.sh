#!/usr/bin/env bash
# cross.sh TARGET...: builds the aggregator for targets other than this machine's, and runs each program: its version, a check of a
# configuration, and a server until it is ready and ends. aarch64-unknown-linux-gnu needs Debian's gcc-aarch64-linux-gnu, and
# qemu-user to run; x86_64-unknown-linux-musl needs musl-tools.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

start_seconds_max=60
work="$(mktemp -d)"
server=""
trap '[[ -z "$server" ]] || kill -KILL "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

# tools_of TARGET: the C compiler and the linker for it, and what its programs run under. Rust brings musl itself and links it by the
# system's compiler; musl-gcc would add its own start files and loader, and the program would end at once.
tools_of() {
    case "$1" in
    aarch64-unknown-linux-gnu)
        compiler=aarch64-linux-gnu-gcc linker=aarch64-linux-gnu-gcc packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross) runner=()
        if [[ "$(uname -m)" != aarch64 ]]; then
            runner=(qemu-aarch64 -L /usr/aarch64-linux-gnu)
            packages+=(qemu-user)
        fi
        ;;
    x86_64-unknown-linux-musl) compiler=musl-gcc linker=cc packages=(musl-tools) runner=() ;;
    *) die "there is no cross compiler for '$1' here." "Add it to $0." ;;
    esac
    command -v "$compiler" >/dev/null && command -v "${runner[0]:-true}" >/dev/null ||
        apt_install "${packages[@]}" || die "a tool that builds or runs for $1 is missing." "Install ${packages[*]}."
    compgen -G "$(rustc --print target-libdir --target "$1")/libstd-*.rlib" >/dev/null || rustup target add "$1" >&2 ||
        die "there is no standard library for $1." "Install it: rustup target add $1"
}

build() {
    local of_c="CC_${1//-/_}" of_cargo="${1//-/_}"
    of_cargo="CARGO_TARGET_${of_cargo^^}_LINKER"
    env "$of_c=$compiler" "$of_cargo=$linker" cargo build "${locked[@]}" --release -p weir-aggregator --target "$1"
}

# address LOG: that of the admin listener, once the server has logged it.
address() {
    local until=$((SECONDS + start_seconds_max)) found
    while ((SECONDS < until)); do
        found="$(sed -n 's/.*weir-aggregator serves.* admin=\([^ ]*\).*/\1/p' "$1")"
        if [[ -n "$found" ]]; then
            echo "$found"
            return
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    cat "$1" >&2
    die "the program logs no address within $start_seconds_max s" "its log is above"
}

run() {
    local program=("${runner[@]}" "$CARGO_TARGET_DIR/$1/release/weir-aggregator") admin
    log "running ${program[*]}"
    "${program[@]}" --version
    "${program[@]}" check-config examples/api-keys.json
    "${program[@]}" serve --region cross --grpc-listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --http-listen 127.0.0.1:0 \
        --database-url "sqlite://$work/weir.db" --migrate 2>"$work/log" &
    server=$!
    admin="$(address "$work/log")"
    "${program[@]}" healthcheck --admin-listen "$admin" || die "the server is not ready" "see above"
    kill -TERM "$server"
    wait "$server" || die "the server does not end in good order" "$(tail -n 3 "$work/log")"
    server=""
}

for target in "$@"; do
    tools_of "$target"
    started=$SECONDS
    build "$target"
    log "built for $target in $((SECONDS - started)) s"
    run "$target"
    rm -f "$work"/*
done
