#!/usr/bin/env bash
# wasm-cargo.sh COMMAND ARGS...: runs cargo for the filter's target, or for that of WEIR_WASM_TARGET, with the standard library that wasm-std.sh found.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

way="$("$root/envoy/tools/build/wasm-std.sh")"
target="${WEIR_WASM_TARGET:-wasm32-wasip1}"
command="$1"
shift
# Panics state where they happened. Paths of this checkout and of crates are written in the same way wherever they are, so that
# all builds of a commit with the same compiler have the same bytes. Cargo names a registry's folder by its address.
# Its name differs among versions of cargo.
cargo=cargo
[[ "$way" != debian ]] || cargo=/usr/bin/cargo
"$cargo" fetch --quiet "${locked[@]}" --target wasm32-wasip1
flags=(-C target-feature=+simd128,+bulk-memory "--remap-path-prefix=$root=/weir")
for registry in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do flags+=("--remap-path-prefix=$registry=/crates"); done
# encode FLAG...: with the separator that flags may not contain, as paths may contain spaces.
encode() { local IFS=$'\x1f' && printf '%s' "$*"; }

case "$way" in
rustup)
    CARGO_ENCODED_RUSTFLAGS="$(encode "${flags[@]}")" exec "$cargo" "$command" --target "$target" "$@"
    ;;
debian)
    # rustup's cargo stays first on PATH for everything else; here the compiler and cargo must both be Debian's.
    linkers="$(dirname "$(find "$(rustc --print sysroot)/lib/rustlib" -name rust-lld -type f | head -n 1)")"
    [[ -x "$linkers/rust-lld" ]] || die "rust-lld is missing." "Install Rust with rustup (https://rustup.rs): it brings rust-lld."
    libc="$(dirname "$(dpkg -L wasi-libc | grep '/libc\.a$' | head -n 1)")"
    PATH="$PATH:$linkers" RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_ENCODED_RUSTFLAGS="$(encode "${flags[@]}" -L "$libc")" \
        exec "$cargo" "$command" -Zbuild-std=std,panic_abort --target "$target" "$@"
    ;;
esac
