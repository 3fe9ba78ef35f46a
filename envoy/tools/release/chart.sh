#!/usr/bin/env bash
# chart.sh REGISTRY FOLDER: packages the chart into FOLDER, with the images of a registry in place of those to change. Alerts lead to the
# pages of this version in GITHUB_REPOSITORY, or in the repository of the registry's name.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

helm="$("$root/envoy/tools/install/kubernetes.sh")/bin/helm"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cp -a envoy/deploy/kubernetes envoy/deploy/grafana "$work/"
sed -i "s,registry\.example\.com,$1,; s, *# CHANGE\( *;.*\)\?$,," "$work/kubernetes/chart/values.yaml"
version="$(sed -n 's/^version: *//p' "$work/kubernetes/chart/Chart.yaml")"
sed -i "s,OWNER/REPOSITORY/blob/main/,${GITHUB_REPOSITORY:-${1#*/}}/blob/v$version/," "$work/grafana/alerts.yml" "$work/grafana/prometheus-rule.yaml"
"$helm" package "$work/kubernetes/chart" --destination "$2" >&2
