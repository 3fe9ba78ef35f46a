#!/usr/bin/env bash
# Builds the playground into target/playground-page and serves it; arguments go to the server. With `--build-only FOLDER` it is put
# there instead, for any web server.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

if [[ " $* " == *" --help "* || " $* " == *" -h "* ]]; then
    echo "playground [--build-only FOLDER]: build it; without FOLDER, into target/playground-page, and serve that:"
fi
help_of weir-pages envoy/tools/run/weir-pages.rs "$@"
folder="$root/target/playground-page"
if [[ "${1:-}" == --build-only ]]; then
    folder="${2:?--build-only takes a folder}"
fi

log "building the playground"
WEIR_WASM_TARGET=wasm32-unknown-unknown "$root/envoy/tools/build/wasm-cargo.sh" \
    build "${locked[@]}" -p weir-playground --lib --profile playground
mkdir -p "$folder"
cargo run --quiet "${locked[@]}" --target-dir target/build-tools -p weir-build --features bindgen --bin weir-bindgen -- \
    target/wasm32-unknown-unknown/playground/weir_playground.wasm "$folder"
cp examples/playground/page/* "$folder/"
log "the playground is in $folder"
if [[ "${1:-}" != --build-only ]]; then
    exec cargo run --quiet "${locked[@]}" -p weir-envoy --bin weir-pages -- "$folder" "$@"
fi
