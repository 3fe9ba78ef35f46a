#!/usr/bin/env bash
# tool.sh wrk: finds or installs a tool that the benchmarks use, and prints where it is.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

find_tool() {
    case "$1" in
    wrk) command -v wrk ;;
    *) die "no tool is called '$1'" "Ask for wrk." ;;
    esac
}

find_tool "$1" && exit
apt_install "$1" || true
find_tool "$1" || die "$1 is missing and could not be installed." "Install your system's package '$1' and run this again."
