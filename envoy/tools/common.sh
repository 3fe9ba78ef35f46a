# Functions of the scripts in these folders: folders, progress messages, packages. Sourced, never run.
set -euo pipefail

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)"
tools="${WEIR_TOOLS:-$root/.tools}"
cd "$root"
# Programs are expected under target/, so the caller's target folder is not used.
export CARGO_TARGET_DIR="$root/target"

# CI builds with the committed Cargo.lock; elsewhere a changed Cargo.toml may change it.
locked=(${CI:+--locked})

# Writes a progress message to standard error, as the standard output is a script's result.
log() { printf 'weir: %s\n' "$*" >&2; }

# die WHAT HOW...: ends the script with an error: what failed, and what to do about it.
die() {
    printf 'weir: error: %s\n' "$1" >&2
    printf '      %s\n' "${@:2}" >&2
    exit 1
}

# help_of PROGRAM SOURCE ARGUMENT...: with --help among the arguments, prints a program's options and ends the script. Nothing is
# built for that: where no built program is newer than SOURCE, the options come from SOURCE itself, which declares them with clap.
help_of() {
    local program="$1" source="$2" built
    shift 2
    [[ " $* " == *" --help "* || " $* " == *" -h "* ]] || return 0
    for built in "$CARGO_TARGET_DIR"/{release,debug}/"$program"; do
        if [[ -x "$built" && "$built" -nt "$source" ]]; then exec "$built" --help; fi
    done
    awk '
        /derive\((.*, )?Parser/ { if (doc) print doc "\n\nOptions:"; inside = 1; doc = "" }
        inside && /^}/ { exit }
        /^ *\/\/\/ / { line = $0; sub(/^ *\/\/\/ /, "", line); doc = doc (doc ? " " : "") line; next }
        inside && /^ *#\[arg\(/ { arg = arg $0 }
        inside && /^ +(pub )?[a-z_]+: / {
            name = $0
            sub(/^ +(pub )?/, "", name)
            value = (name ~ /: bool,/) ? "" : " <" toupper(substr(name, 1, index(name, ":") - 1)) ">"
            sub(/:.*/, "", name)
            if (match(arg, /long = "[^"]*"/)) name = substr(arg, RSTART + 8, RLENGTH - 9)
            if (match(arg, /default_value(_t)? = ("[^"]*"|[0-9_]+)/)) {
                preset = substr(arg, RSTART, RLENGTH)
                sub(/.*= /, "", preset)
                doc = doc " [default: " preset "]"
            }
            gsub(/_/, "-", name)
            if (arg !~ /hide = true/) print (arg ~ /long/ ? "  --" name value : "  <" toupper(name) ">") "\n          " doc
            doc = arg = ""
        }
        /^$/ || /^}/ { doc = arg = "" }' "$source"
    exit
}

# cargo_build ARGUMENT...: unless everything is built already (WEIR_BUILT). Building a part again by itself takes time: alone it has
# other features of libraries than together with the tests.
cargo_build() {
    [[ -n "${WEIR_BUILT:-}" ]] || cargo build "${locked[@]}" "$@"
}

# apt_install PACKAGE...: only on Debian and its kin, only what is missing, never removing anything.
apt_install() {
    local sudo=()
    command -v apt-get >/dev/null || return 1
    if [[ $EUID -ne 0 ]]; then
        sudo -n true 2>/dev/null || return 1
        sudo=(sudo -n)
    fi
    local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5)
    local install=("${apt[@]}" -y --no-install-recommends --no-remove install "$@") pause
    log "installing $* with apt-get"
    {
        # The lists have a lock for which apt-get does not wait.
        flock 8
        "${install[@]}" </dev/null >&2 2>/dev/null && return
        for pause in 5 20 0; do
            "${apt[@]}" update </dev/null >&2 && "${install[@]}" </dev/null >&2 && return
            sleep "$pause"
        done
        return 1
    } 8<"$root/envoy/tools"
}

# archive FILE FOLDER NAME...: packs names of a folder. The bytes are the same in each run: the commit's time, no user, the names in order.
archive() {
    tar -C "$2" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}" -czf "$1" "${@:3}"
}

# pip_install REQUIREMENTS DIR: what a file names with its hashes, into a folder of the project, complete or not at all.
pip_install() {
    local partial="$2.partial.$$"
    python3 -m pip --version >/dev/null 2>&1 || return 1
    mkdir -p "$(dirname "$2")"
    if python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --no-deps --require-hashes --target "$partial" --requirement "$1" </dev/null >&2; then
        rm -rf "$2" && mv "$partial" "$2"
    else
        rm -rf "$partial"
        return 1
    fi
}
