#!/usr/bin/env bash
# tool.sh wrk|faketime: finds or installs one tool that tests or benchmarks use, and prints where it is.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

find_tool() {
    case "$1" in
    wrk) command -v wrk ;;
    faketime) find /usr/lib /usr/local/lib -name libfaketime.so.1 2>/dev/null | grep -m 1 . ;;
    *) die "no tool is called '$1'" "Ask for wrk or faketime." ;;
    esac
}

find_tool "$1" && exit
apt_install "$1" || true
find_tool "$1" || die "$1 is missing and could not be installed." "Install your system's package '$1' and run this again."
