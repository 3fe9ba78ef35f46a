#!/usr/bin/env bash
# tool.sh redis-server | prometheus: finds or installs a tool that benchmarks or tests use, and prints where it is.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

find_tool() {
    case "$1" in
    # The tests start their own servers; they do not use one that the package starts.
    redis-server) command -v "${WEIR_REDIS_SERVER:-redis-server}" ;;
    prometheus) command -v "${WEIR_PROMETHEUS:-prometheus}" ;;
    *) die "there is no tool '$1'" "Ask for redis-server or prometheus." ;;
    esac
}

find_tool "$1" && exit
apt_install "$1" || true
find_tool "$1" || die "$1 is missing and could not be installed." "Install your system's package '$1' and run this again."
