#!/usr/bin/env bash
# Runs the short list of clang-tidy checks of .clang-tidy over the library and the program.
# Usage: tools/check_tidy.sh [BUILD_DIR]   (with compile_commands.json; default build)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/find_clang.sh"
cd "$here/.."
build=${1:-build}
if [ -z "$LG_CLANG_TIDY" ]; then
    lgi_clang_missing clang-tidy "clang-tidy was not run"
    exit
fi
[ -f "$build/compile_commands.json" ] || { echo "$build/compile_commands.json is missing: build first" >&2; exit 1; }
# Only files that the build knows: a backend that is switched off has no compile command.
mapfile -t files < <(grep -o '"file": *"[^"]*"' "$build/compile_commands.json" | sed 's/.*"\([^"]*\)"$/\1/' |
    grep "^$PWD/src/" | sort -u)
[ ${#files[@]} -gt 0 ] || { echo "$build/compile_commands.json names no file of src/" >&2; exit 1; }
# clang has an omp.h only with its own OpenMP installed; gcc's will do, without an attribute that only gcc knows.
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
omp=$("${CC:-cc}" -print-file-name=include/omp.h)
[ ! -f "$omp" ] || sed -E 's/__malloc__ ?\([^)]*\)/__malloc__/g' "$omp" >"$headers/omp.h"
if ! output=$(printf '%s\0' "${files[@]}" |
    xargs -0 -n 8 -P "$(nproc)" "$LG_CLANG_TIDY" --quiet -p "$build" --extra-arg=-Wno-error \
        --extra-arg=-idirafter"$headers" 2>/dev/null); then
    printf '%s\n' "$output" >&2
    exit 1
fi
echo "clang-tidy: ${#files[@]} files"
