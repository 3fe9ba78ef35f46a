#!/usr/bin/env bash
# compose.sh REGISTRY FOLDER: packs the compose files with what they mount into FOLDER, so that they pull the images of a registry.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

name="weir-compose-$("$root/envoy/tools/release/version.sh")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/$name"
cp -a envoy/deploy/{docker,grafana,docker-compose.yml,quickstart.yml} "$work/$name/"
# There is nothing to build from beside these files.
sed -i "s,\${WEIR_IMAGES:-},\${WEIR_IMAGES:-$1/},; /^ *build: /d; s,^# \`up\` pulls them.*,# \`up\` pulls them.," "$work/$name/docker/services.yml"
sed -i 's,envoy/deploy/,,g; s, *# WEIR_IMAGES in .*,,' "$work/$name"/*.yml
archive "$2/$name.tar.gz" "$work" "$name"
