#!/usr/bin/env bash
# browser.sh chromium | chromedriver: finds or installs what the tests of pages use, and prints where it is.
# WEIR_CHROMIUM and WEIR_CHROMEDRIVER name others than those on PATH; both must be of one version.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

case "$1" in
chromium) names=("${WEIR_CHROMIUM:-}" chromium chromium-browser google-chrome) ;;
chromedriver) names=("${WEIR_CHROMEDRIVER:-}" chromedriver /usr/lib/chromium-browser/chromedriver) ;;
*) die "there is no program '$1'" "Ask for chromium or chromedriver." ;;
esac

find_one() {
    local name
    for name in "${names[@]}"; do
        [[ -n "$name" ]] && command -v "$name" && return
    done
    return 1
}

find_one && exit
apt_install chromium chromium-driver || true
find_one || die "$1 is missing and could not be installed." \
    "Install your system's Chromium and its chromedriver (Debian: apt-get install chromium chromium-driver)," \
    "or set WEIR_CHROMIUM and WEIR_CHROMEDRIVER, and run this again."
