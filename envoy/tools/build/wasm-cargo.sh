#!/usr/bin/env bash
# wasm-cargo.sh COMMAND ARGS...: runs cargo for the filter's target, or for that of WEIR_WASM_TARGET, with the standard library that wasm-std.sh found.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

way="$("$root/envoy/tools/build/wasm-std.sh")"
target="${WEIR_WASM_TARGET:-wasm32-wasip1}"
flags="-C target-feature=+simd128,+bulk-memory"
command="$1"
shift

case "$way" in
rustup)
    RUSTFLAGS="$flags" exec cargo "$command" --target "$target" "$@"
    ;;
debian)
    # rustup's cargo stays first on PATH for everything else; here the compiler and cargo must both be Debian's.
    linkers="$(dirname "$(find "$(rustc --print sysroot)/lib/rustlib" -name rust-lld -type f | head -n 1)")"
    [[ -x "$linkers/rust-lld" ]] || die "rust-lld is missing." "Install Rust with rustup (https://rustup.rs): it brings rust-lld."
    libc="$(dirname "$(dpkg -L wasi-libc | grep '/libc\.a$' | head -n 1)")"
    PATH="$PATH:$linkers" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 RUSTFLAGS="$flags -L $libc" \
        exec /usr/bin/cargo "$command" -Zbuild-std=std,panic_abort --target "$target" "$@"
    ;;
esac
