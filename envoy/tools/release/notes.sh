#!/usr/bin/env bash
# notes.sh VERSION [FILE]: prints the section of a version of CHANGELOG.md, or of another file, as the notes of a release.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

file="${2:-CHANGELOG.md}"
notes="$(awk -v heading="## [$1]" '
    /^## / { inside = (index($0, heading) == 1); next }
    /^\[[^]]*\]: / { next }                    # Links to comparisons, at the end of the page.
    inside { print }' "$file" | sed -e '/./,$!d')"
[[ -n "$notes" ]] || die "$file has no section [$1], or it is empty." "Add the section, with the date."
printf '%s\n' "$notes"
