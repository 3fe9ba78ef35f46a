#!/usr/bin/env bash
# checksums.sh FOLDER: writes SHA256SUMS of all files in a folder, and verifies it as a user would.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

cd "$1"
rm -f SHA256SUMS
files=(*)
[[ -e "${files[0]}" ]] || die "$1 holds no file." "Build what is released first."
sha256sum -- "${files[@]}" >SHA256SUMS
sha256sum --check --quiet SHA256SUMS
