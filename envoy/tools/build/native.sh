#!/usr/bin/env bash
# Builds target/libweir_filter.so: the filter as a dynamic module of Envoy, for this machine's processor architecture and for its C library
# or a newer one.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

log "building the native filter"
# Paths of this checkout and of crates are written in the same way wherever they are, as in wasm-cargo.sh.
flags=("--remap-path-prefix=$root=/weir" -C link-arg=-Wl,-z,nodelete -C link-arg=-static-libgcc)
for registry in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do flags+=("--remap-path-prefix=$registry=/crates"); done
# Every processor for servers of the last fifteen years.
[[ "$(uname -m)" != x86_64 ]] || flags+=(-C target-cpu=x86-64-v2)
# encode FLAG...: with the separator that flags may not contain, as paths may contain spaces.
encode() { local IFS=$'\x1f' && printf '%s' "$*"; }
CARGO_ENCODED_RUSTFLAGS="$(encode "${flags[@]}")" \
    cargo rustc --quiet "${locked[@]}" --target-dir target/native-build -p weir-filter --features native --profile native --lib --crate-type cdylib
cp target/native-build/native/libweir_filter.so target/.libweir_filter.so
mv target/.libweir_filter.so target/libweir_filter.so
module=target/libweir_filter.so
for folder in "$root" "${CARGO_HOME:-$HOME/.cargo}" "$(rustc --print sysroot)"; do
    ! grep -qaF "$folder" "$module" || die "$module contains the path $folder." "Remap it in envoy/tools/build/native.sh."
done
log "$module: $(($(stat -c %s "$module") / 1024)) KiB"
