#!/usr/bin/env bash
# Checks the compose files, runs the quick start of README.md, then runs docker-compose.yml on a Docker engine, breaks its parts in turn,
# and checks limits and counts (weir-compose-test).
#
# Official images are pulled; where that is not possible, stand-ins are built (stand-ins.sh). Our own are made of what is
# built here, by the last stages of the Dockerfiles: to compile in a container would take minutes more and test no more of
# the compose file. Project, tags and ports are this run's own, and all that was made is removed at the end.
# Exit code 3: there is no engine or no Compose here, or the images can be neither pulled nor stood in for.
source "$(dirname -- "${BASH_SOURCE[0]}")/../common.sh"

pull_seconds_max=120
run="weir-test-$$"
file="$root/envoy/deploy/docker-compose.yml"
work="$root/target/compose-test"
export WEIR_TAG="$run" COMPOSE_PROJECT_NAME="$run" WEIR_IMAGES=""
# Its stages are few and small, and it prints less.
export DOCKER_BUILDKIT=0
# Compose's first version gives up on the engine after a minute.
export COMPOSE_HTTP_TIMEOUT=300
# The limits of the file are of days: a day that ends while the test runs would begin them anew.
day_seconds=86400
test_seconds_max=360
stand_ins=()

leave_out() { log "left out: $1"; exit 3; }

command -v docker >/dev/null || leave_out "docker is not installed"
timeout 20 docker info >/dev/null 2>&1 || leave_out "no Docker engine answers"
if docker compose version >/dev/null 2>&1; then
    compose="docker compose"
elif command -v docker-compose >/dev/null; then
    compose="docker-compose"
else
    leave_out "there is neither docker compose nor docker-compose"
fi

# A lock, as two runs would remove each other's stand-ins. A folder can be locked by any user.
lock="${TMPDIR:-/tmp}/weir-compose-test"
mkdir -p "$lock"
exec 9<"$lock"
flock 9

# down PROJECT: of any of the files.
down() { $compose -f "$file" --project-name "$1" down --volumes --remove-orphans --timeout 3; }

# config FILE ARGUMENT...: what Compose makes of a file of envoy/deploy.
config() { env -u WEIR_TAG $compose -f "envoy/deploy/$1" config "${@:2}"; }

# Both files are valid, and the same whether they pull a release or build it: only the names of our images begin with WEIR_IMAGES.
check_files() {
    local name version release=registry.invalid/weir/ built pulled images wanted
    version="$("$root/envoy/tools/release/version.sh")"
    wanted="weir-aggregator:$version weir-filter-installer:$version"
    for name in docker-compose.yml quickstart.yml; do
        built="$(config "$name")"
        pulled="$(WEIR_IMAGES=$release config "$name")"
        [[ "$(config "$name" --services | sort)" == "$(WEIR_IMAGES=$release config "$name" --services | sort)" ]] ||
            die "$name has other services with WEIR_IMAGES." "Let WEIR_IMAGES change names of images alone."
        images="$(sed -n "s,^ *image: $release,,p" <<<"$pulled" | sort -u | xargs)"
        [[ "$images" == "$wanted" ]] || die "$name pulls from the registry: $images" "Expected: $wanted"
        [[ "${pulled//"image: $release"/"image: "}" == "$built" ]] || die "WEIR_IMAGES changes more of $name than images." "$(diff <(echo "$built") <(echo "$pulled"))"
        (($(grep -c 'dockerfile: filter/Dockerfile' <<<"$built") == 1)) && grep -q 'dockerfile: aggregator/Dockerfile' <<<"$built" ||
            die "$name does not build both images." "See envoy/deploy/docker/services.yml."
    done
}

# The command with Compose in README.md starts the quick start, which gets more requests than its limit.
run_quickstart() {
    local start ports until=$((SECONDS + 60)) project="$run-quickstart" found
    # The images are made already.
    start="$(sed -n 's/.*`docker compose \(-f envoy.deploy.quickstart.yml up [^`]*\)`.*/\1/p' README.md | head -n 1)"
    [[ -n "$start" ]] || die "README.md has no command for the quick start." "Expected: docker compose -f envoy/deploy/quickstart.yml up …"
    start="-p $project ${start/ --build/}"
    ports="$(python3 -c 'import socket
all = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in all))')"
    read -r ENVOY_PORT ENVOY_ADMIN_PORT AGGREGATOR_PORT <<<"$ports"
    export ENVOY_PORT ENVOY_ADMIN_PORT AGGREGATOR_PORT
    $compose $start >"$work/quickstart.log" 2>&1 || { cat "$work/quickstart.log" >&2; die "the quick start does not start." "$start"; }
    until curl -fs "http://127.0.0.1:$ENVOY_ADMIN_PORT/ready" >/dev/null && curl -fs "http://127.0.0.1:$AGGREGATOR_PORT/readyz" >/dev/null; do
        ((SECONDS < until)) || die "the quick start is not ready after a minute." "$(docker ps --all)"
        sleep 0.2
    done
    found="$(curl -s -o /dev/null -w '%{http_code}\n' -H 'x-api-key: alice' "http://127.0.0.1:$ENVOY_PORT/?n=[1-120]" | sort | uniq -c | xargs)"
    [[ "$found" == "100 200 20 429" ]] || die "the quick start's requests are answered: $found" "Expected: 100 200 20 429"
    down "$project" >"$work/down.log" 2>&1
}

# What runs that were killed have left: none but this one can live.
remove_leftovers() {
    local project
    docker ps --all --format '{{.Label "com.docker.compose.project"}}' | { grep '^weir-test-' || true; } | sort -u |
        while read -r project; do
            log "removing what $project has left"
            down "$project" </dev/null >/dev/null 2>&1 || true
        done
}

clean_up() {
    local project
    for project in "$run" "$run-quickstart"; do
        down "$project" >"$work/down.log" 2>&1 || cat "$work/down.log" >&2
    done
    docker rmi "weir-aggregator:$run" "weir-filter:$run" "weir-filter-installer:$run" "${stand_ins[@]}" >/dev/null 2>&1 || true
}

# The official images that are missing and cannot be pulled. Where one cannot, the others are not tried: they come from the same place.
missing_images() {
    local name reachable=true
    {
        # The images of services without a profile; Compose prints each image before the profiles.
        $compose -f "$file" config | awk '/^    image:/ { image = $2; print image } /^    profiles:/ { print "-", image }' |
            awk '$1 == "-" { delete names[$2]; next } { names[$1] } END { for (name in names) print name }' | grep -v '^weir-'
        sed -n 's/^ARG BUSYBOX_IMAGE=//p' filter/Dockerfile
    } | sort -u | while read -r name; do
        docker image inspect "$name" >/dev/null 2>&1 && continue
        if $reachable; then
            log "pulling $name"
            timeout "$pull_seconds_max" docker pull --quiet "$name" >/dev/null 2>&1 </dev/null && continue
            reachable=false
        fi
        echo "$name"
    done
}

# stage DOCKERFILE FIRST-LINE: the stage of a Dockerfile that begins so, taking from here what it takes from the build.
stage() {
    sed -n '/^ARG BUSYBOX_IMAGE=/p' "$1"
    sed -n "/^$2/,/^FROM/{/^$2/p;/^FROM/!p}" "$1" | sed 's/--from=build //'
}

# build NAME STAGE: of what lies in the folder of the name.
build() {
    printf '%s\n' "$2" >"$work/$1/Dockerfile"
    docker build --quiet --tag "$1:$run" "$work/$1" >/dev/null 2>"$work/build.log" || { cat "$work/build.log" >&2; exit 1; }
}

own_images() {
    local library
    mkdir -p "$work"/{weir-aggregator/image/etc/ssl/certs,weir-filter,weir-filter-installer}
    local image="$work/weir-aggregator/image"
    strip --strip-debug -o "$image/weir-aggregator" target/debug/weir-aggregator
    ldd "$image/weir-aggregator" | grep -o '/[^ ]*' | xargs cp --parents --dereference --target-directory "$image"
    : >"$image/etc/ssl/certs/ca-certificates.crt"
    cp target/weir-filter.wasm "$work/weir-filter/plugin.wasm"
    cp target/weir-filter.wasm "$work/weir-filter-installer/plugin.wasm"
    build weir-aggregator "$(stage aggregator/Dockerfile 'FROM scratch')"
    build weir-filter "$(stage filter/Dockerfile 'FROM scratch$')"
    build weir-filter-installer "$(stage filter/Dockerfile 'FROM ${BUSYBOX_IMAGE}')"
}

# What Istio and Envoy Gateway look for: plugin.wasm in the last layer of an image.
check_filter_image() {
    docker save "weir-filter:$run" | tar -x -C "$work/saved"
    local layers
    layers="$(find "$work/saved" -name layer.tar -o -path '*/sha256/*' -type f | while read -r blob; do tar -tf "$blob" 2>/dev/null || true; done)"
    [[ "$layers" == plugin.wasm ]] || die "the filter's image holds: $layers" "It must hold plugin.wasm and nothing else, in one layer."
}

rm -rf "$work" && mkdir -p "$work/saved"
log "checking the compose files"
check_files
log "building the aggregator, the filter and the test"
cargo_build --quiet -p weir-aggregator
cargo_build --quiet -p weir-envoy --bin weir-compose-test
"$root/envoy/tools/build/filter.sh"
trap clean_up EXIT
remove_leftovers
missing="$(missing_images)"
if [[ -n "$missing" ]]; then
    # Word by word: names have no spaces.
    code=0
    "$root/envoy/tools/compose/stand-ins.sh" $missing >"$work/stand-ins" || code=$?
    mapfile -t stand_ins <"$work/stand-ins"
    ((code != 3)) || leave_out "the images can be neither pulled nor built of packages"
    ((code == 0)) || die "not all stand-ins could be built." "Pull the images where you can, and run this again."
fi
own_images
check_filter_image
log "running the quick start"
started=$SECONDS
run_quickstart
printf 'ok %5.1f s  the quick start of README.md\n' $((SECONDS - started))
export WEIR_COMPOSE="$compose -f $file --project-name $run" WEIR_COMPOSE_PROJECT="$run"
left=$((day_seconds - $(date +%s) % day_seconds))
if ((left < test_seconds_max)); then
    log "waiting $left s for the day to end"
    sleep "$left"
fi
log "testing"
# Without the lock: what outlives this script must not hold it.
target/debug/weir-compose-test 9<&-
