#!/usr/bin/env bash
# images.sh REGISTRY ARCHITECTURE FOLDER: builds the images on a machine of the architecture (amd64 or arm64) and pushes them by digest;
# publish.sh gives them their tags. Puts the digests (*.json) into FOLDER, and what is released as files into FOLDER/files.
#
# The filter of WASM is the same on each architecture, and is released from amd64. Its images have a single manifest with a single layer, as Istio and
# Envoy Gateway expect, so they carry no attestations.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

registry="$1" architecture="$2" folder="$3"
version="$("$root/envoy/tools/release/version.sh")"
revision="$(git rev-parse HEAD)"
mkdir -p "$folder/files"

docker buildx inspect weir-release >/dev/null 2>&1 || docker buildx create --name weir-release --driver docker-container >/dev/null

# build NAME DOCKERFILE OPTION...: pushes the image NAME, and unpacks it into $unpacked.
build() {
    local name="$1" common
    common=(docker buildx build --builder weir-release --platform "linux/$architecture" --file "$2"
        --build-arg "VERSION=$version" --build-arg "REVISION=$revision" "${@:3}")
    "${common[@]}" --metadata-file "$folder/$name.$architecture.json" \
        --output "type=image,name=$registry/$name,push-by-digest=true,name-canonical=true,push=true" .
    unpacked="$(mktemp -d)"
    "${common[@]}" --output "type=local,dest=$unpacked" .
}

build weir-aggregator aggregator/Dockerfile --provenance=mode=max --sbom=true
mkdir "$unpacked/completions"
for shell in bash fish zsh; do "$unpacked/weir-aggregator" completions "$shell" >"$unpacked/completions/weir-aggregator.$shell"; done
archive "$folder/files/weir-aggregator-$version-linux-$architecture.tar.gz" "$unpacked" weir-aggregator completions
# It runs, to put the filter into a volume of Compose.
build weir-filter-installer filter/Dockerfile --target installer --provenance=mode=max --sbom=true
build weir-filter-native filter/Dockerfile --target native --provenance=mode=max --sbom=true
cp "$unpacked/libweir_filter.so" "$folder/files/libweir_filter-$version-linux-$architecture.so"
if [[ "$architecture" == amd64 ]]; then
    for module in weir-filter weir-filter-responses; do
        build "$module" filter/Dockerfile --build-arg "FILTER=$module.wasm" --provenance=false --sbom=false
        cp "$unpacked/plugin.wasm" "$folder/files/$module.wasm"
    done
fi
