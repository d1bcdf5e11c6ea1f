#!/usr/bin/env bash
# Everything that must hold before a change goes in, cheapest first; stops at the first failure. The last lines of a
# good run are ctest's own summary of the main test suite.
# Usage: tools/check.sh [STAGE...]   (default: all; one of the names below)
# Environment: JOBS (processes at a time)
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/find_clang.sh
jobs=${JOBS:-$(nproc)}
command -v ninja >/dev/null && export CMAKE_GENERATOR=${CMAKE_GENERATOR:-Ninja}

# Configures and builds a preset; the compiler's words are shown only if it fails.
build() { # preset, cmake options...
    local preset=$1 log
    shift
    log=$(mktemp)
    if ! { cmake --preset "$preset" -DLG_WERROR=OFF "$@" && cmake --build --preset "$preset" -j "$jobs"; } >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

fixed_addresses=()
run_ctest() { # build folder, ctest options...
    local folder=$1
    shift
    "${fixed_addresses[@]}" ctest --test-dir "$folder" -j "$jobs" --output-on-failure --no-tests=error "$@"
}

stage_layers() { tools/check_layers.sh; }
stage_format() { tools/check_format.sh; }
stage_headers() { tools/check_headers.sh; }
# Only here are warnings errors: with sanitizers, gcc warns of what cannot happen.
stage_build() { build release -DLG_TESTS=ON -DLG_WERROR=ON; }
stage_tidy() { tools/check_tidy.sh build; }
stage_shared() {
    build shared
    tools/check_symbols.sh build/shared/src/libleapgrad.so build/src/libleapgrad.a
    tests/cmake/install_smoke.sh build/shared
}
stage_fuzz() {
    if [ -z "$LG_CLANG" ]; then
        lgi_clang_missing clang "fuzz targets were not run"
        return
    fi
    build fuzz "-DCMAKE_C_COMPILER=$LG_CLANG"
    run_ctest build/fuzz
}
stage_tsan() {
    build tsan
    # ThreadSanitizer cannot live with much randomness in addresses, which some kernels have.
    local fixed_addresses=(setarch "$(uname -m)" -R)
    "${fixed_addresses[@]}" true 2>/dev/null || fixed_addresses=()
    run_ctest build/tsan -L tsan
}
stage_asan() {
    build asan
    run_ctest build/asan -LE '^(slow|check)$'
}
stage_test() { run_ctest build; }

stages=(layers format headers build tidy shared fuzz tsan asan test)
for stage in "${@:-${stages[@]}}"; do
    [ "$(type -t "stage_$stage")" = function ] || { echo "no stage '$stage' of: ${stages[*]}" >&2; exit 2; }
    echo "== $stage"
    start=$SECONDS
    # Not in a condition: bash would switch off errexit inside.
    set +e
    (set -e; "stage_$stage")
    rc=$?
    set -e
    if [ "$rc" != 0 ]; then
        echo "== $stage FAILED after $((SECONDS - start)) s" >&2
        exit 1
    fi
    [ "$stage" = test ] || echo "== $stage ok, $((SECONDS - start)) s"
done
