#!/usr/bin/env bash
# Checks that all sources look as .clang-format says; --fix rewrites them.
# Usage: tools/check_format.sh [--fix] [ROOT]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/find_clang.sh"
mode="--dry-run --Werror"
if [ "${1:-}" = --fix ]; then
    mode=-i
    shift
fi
cd "${1:-$here/..}"
if [ -z "$LG_CLANG_FORMAT" ]; then
    lgi_clang_missing clang-format "format was not checked"
    exit
fi
mapfile -t files < <(find src include tests examples bench -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort)
# shellcheck disable=SC2086
"$LG_CLANG_FORMAT" $mode "${files[@]}" || { echo "format: 'make format' mends this" >&2; exit 1; }
echo "format: ${#files[@]} files"
