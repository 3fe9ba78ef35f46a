#!/usr/bin/env bash
# Finds or installs a standard library for the filter's target, or for that of WEIR_WASM_TARGET, and prints the way it was found:
# `rustup` (any toolchain that has it) or `debian`. The way is remembered. WEIR_WASM_STD=rustup|debian chooses one.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

target="${WEIR_WASM_TARGET:-wasm32-wasip1}"
rustup_seconds_max=120
remembered="$tools/wasm-std"

has_std() { compgen -G "$(rustc --print target-libdir --target "$target" 2>/dev/null)/libstd-*.rlib" >/dev/null; }

from_rustup() {
    has_std && return
    command -v rustup >/dev/null || return 1
    log "adding $target with rustup (at most $rustup_seconds_max s)"
    timeout "$rustup_seconds_max" rustup target add "$target" </dev/null >&2 && has_std
}

debian_is_there() { [[ -x /usr/bin/cargo && -d /usr/lib/wasm32-wasi ]] && dpkg -s rustc-web rust-web-src >/dev/null 2>&1; }

# Debian's newer toolchain has the library's sources. It builds the filter; the usual toolchain builds everything else.
from_debian() {
    debian_is_there && return
    apt_install rustc-web cargo-web rust-web-src wasi-libc && debian_is_there
}

choose() {
    local wanted="${WEIR_WASM_STD:-}"
    if [[ -z "$wanted" ]] && has_std; then wanted=rustup; fi
    if [[ -z "$wanted" && "$(cat "$remembered" 2>/dev/null)" == debian ]]; then wanted=debian; fi
    case "$wanted" in
    rustup | debian) "from_$wanted" && echo "$wanted" ;;
    "")
        if from_rustup; then
            echo rustup
        else
            log "rustup could not install $target; trying Debian's toolchain, which builds it from source"
            from_debian && echo debian
        fi
        ;;
    *) die "WEIR_WASM_STD is '$wanted'" "Set it to rustup or debian, or leave it unset." ;;
    esac
}

way="$(choose)" || die "no standard library for $target could be found or installed." \
    "Either:  rustup target add $target" \
    "or, on Debian as root:  apt-get install rustc-web cargo-web rust-web-src wasi-libc" \
    "and run this again."
if [[ "$(cat "$remembered" 2>/dev/null)" != "$way" ]]; then
    mkdir -p "$tools"
    echo "$way" >"$remembered"
    log "built with the $target library from $way"
fi
echo "$way"
