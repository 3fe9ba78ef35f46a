#!/usr/bin/env bash
# databases.sh mariadb|mysql: finds or installs a database server for the tests, and prints where it is.
#
# MariaDB comes from the system's packages. Debian 12 has no MySQL, so it is unpacked from Debian's sid into a folder of
# the project (about a minute, 440 MB) and run with its own libraries; nothing of it is installed into the system. Beside it
# lie its clients and a Redis 8, for images (compose/test.sh). The harness starts the servers (weir_envoy::DatabaseServer).
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

mysql_root="$tools/mysql-sid"
# Debian's keys, of the package debian-archive-keyring: packages are unpacked only if they are signed.
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

find_mariadb() {
    if [[ -n "${WEIR_MARIADBD:-}" ]]; then
        [[ -x "$WEIR_MARIADBD" ]] || die "WEIR_MARIADBD names $WEIR_MARIADBD, which cannot be run." "Set it to a mariadbd."
        printf '%s\n' "$WEIR_MARIADBD"
        return
    fi
    PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v mariadbd
}

find_mysql() {
    local dir="${WEIR_MYSQLD_ROOT:-$mysql_root}"
    if [[ -x "$dir/usr/sbin/mysqld" && (-n "${WEIR_MYSQLD_ROOT:-}" || -x "$dir/usr/bin/mysqladmin") ]]; then
        printf '%s\n' "$dir"
        return
    fi
    [[ -z "${WEIR_MYSQLD_ROOT:-}" ]] || die "WEIR_MYSQLD_ROOT names $dir, which has no usr/sbin/mysqld." "Unset it or correct it."
    return 1
}

# The mirror that this machine already uses; deb.debian.org elsewhere.
mirror() {
    local found
    found="$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
        sed -nE 's,^(URIs:|deb( \[[^]]*\])?) *(https?://[^ ]*/debian)/?( .*)?$,\3,p' | head -n 1)"
    printf '%s\n' "${found:-http://deb.debian.org/debian}"
}

# Unpacked into a folder beside, which is renamed at the end, so that an interrupted run leaves no partial one.
build_mysql() {
    local partial="$mysql_root.partial.$$"
    [[ $EUID -eq 0 ]] || return 1
    [[ -r "$keyring" ]] || apt_install debian-archive-keyring || return 1
    command -v mmdebstrap >/dev/null || apt_install mmdebstrap || return 1
    mkdir -p "$tools"
    log "unpacking MySQL from Debian's sid into $mysql_root"
    if mmdebstrap --quiet --variant=essential --mode=root \
        --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Retries "5"' \
        --include=mysql-server-core,mysql-client-core,redis-server sid "$partial" \
        "deb [signed-by=$keyring] $(mirror) sid main" </dev/null >&2; then
        rm -rf "$mysql_root" && mv "$partial" "$mysql_root"
    else
        rm -rf "$partial"
        return 1
    fi
}

case "${1:-}" in
mariadb)
    find_mariadb && exit
    apt_install mariadb-server-core mariadb-server || true
    find_mariadb || die "MariaDB is missing and could not be installed." \
        "Install your system's MariaDB server, or set WEIR_MARIADBD to a mariadbd, and run this again."
    ;;
mysql)
    find_mysql && exit
    # A minute and 410 MB are downloaded on request only.
    if [[ "${2:-}" == --build ]]; then
        build_mysql || log "MySQL could not be unpacked (needs root and mmdebstrap)"
        find_mysql && exit
    fi
    log "MySQL is not available: its tests are skipped. '$0 mysql --build' unpacks one (as root, on Debian)."
    exit 3
    ;;
*) die "there is no database '${1:-}'" "Ask for mariadb or mysql." ;;
esac
