#!/usr/bin/env bash
# Checks that headers stand alone: each public one as C11 and as C++17, with documentation comments that are true
# (clang -Wdocumentation); each internal one as C17, but not the *.inc.h, which are parts of another file.
# Usage: tools/check_headers.sh [ROOT]   Environment: CC, CXX, CLANG
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/find_clang.sh"
root=$(cd "${1:-$here/..}" && pwd)
cd "$root"
cc=${CC:-cc}
cxx=${CXX:-c++}
warnings="-Wall -Wextra -Wpedantic -Werror"
failed=0

check() { # file, compiler and options...
    local file=$1 output
    shift
    if ! output=$(echo "#include \"$file\"" | "$@" -fsyntax-only - 2>&1); then
        printf '%s does not compile alone with %s:\n%s\n' "$file" "$*" "$output" >&2
        failed=1
    fi
}

num=0
for header in include/leapgrad/*.h; do
    name=${header#include/}
    # shellcheck disable=SC2086
    check "$name" "$cc" -std=c11 $warnings -Wstrict-prototypes -Iinclude -x c
    # shellcheck disable=SC2086
    check "$name" "$cxx" -std=c++17 $warnings -Iinclude -x c++
    if [ -n "$LG_CLANG" ]; then
        check "$name" "$LG_CLANG" -std=c11 -Wdocumentation -Werror -Iinclude -x c
    fi
    num=$((num + 1))
done
[ -n "$LG_CLANG" ] || lgi_clang_missing "clang" "documentation comments were not checked" || failed=1

while read -r header; do
    # shellcheck disable=SC2086
    check "${header#src/}" "$cc" -std=gnu17 $warnings -D_GNU_SOURCE -Iinclude -Isrc -x c
    num=$((num + 1))
done < <(find src -name '*.h' ! -name '*.inc.h' | sort)
[ "$failed" = 0 ] && echo "headers: all $num compile alone"
exit "$failed"
