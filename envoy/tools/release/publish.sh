#!/usr/bin/env bash
# publish.sh REGISTRY FOLDER: gives the images that images.sh pushed from all architectures their tags, signs them, pushes the chart, and
# completes FOLDER/files: chart, compose files, SBOMs, checksums and their signature. Signatures are keyless (Sigstore): cosign takes the workflow's identity.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

registry="$1" folder="$2"
version="$("$root/envoy/tools/release/version.sh")"
release="$root/envoy/tools/release"

# digest_of FILE: what buildx wrote.
digest_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["containerimage.digest"])' "$1"; }

for name in weir-aggregator weir-filter weir-filter-responses weir-filter-installer weir-filter-native; do
    digests=()
    for file in "$folder/$name".*.json; do digests+=("$registry/$name@$(digest_of "$file")"); done
    docker buildx imagetools create --tag "$registry/$name:$version" "${digests[@]}"
    digest="$(docker buildx imagetools inspect "$registry/$name:$version" --format '{{ .Manifest.Digest }}')"
    cosign sign --yes --recursive "$registry/$name@$digest"
done

"$release/chart.sh" "$registry" "$folder/files"
"$release/compose.sh" "$registry" "$folder/files"
helm="$("$root/envoy/tools/install/kubernetes.sh")/bin/helm"
"$helm" push "$folder/files/weir-$version.tgz" "oci://$registry/charts"
"$release/sbom.py" weir-aggregator x86_64-unknown-linux-gnu >"$folder/files/weir-aggregator-$version.cdx.json"
"$release/sbom.py" weir-filter wasm32-wasip1 >"$folder/files/weir-filter-$version.cdx.json"
"$release/checksums.sh" "$folder/files"
cosign sign-blob --yes --bundle "$folder/files/SHA256SUMS.sigstore.json" "$folder/files/SHA256SUMS"
