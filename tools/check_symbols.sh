#!/usr/bin/env bash
# Checks what a library shows: a shared one only lg_*, a static one only lg_* and lgi_*.
# Usage: tools/check_symbols.sh LIBRARY...
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: $0 LIBRARY..." >&2; exit 2; }
failed=0
for library in "$@"; do
    case $library in
    *.a) list=$(nm -g --defined-only "$library") pattern='^(lg|lgi)_' ;;
    *) list=$(nm -D --defined-only "$library") pattern='^lg_' ;;
    esac
    # Sanitizers add names of their own.
    names=$(awk 'NF == 3 { print $3 }' <<<"$list" | grep -vE '^__(asan|odr_asan|sanitizer|start_|stop_)' || true)
    [ -n "$names" ] || { echo "$library shows no symbols" >&2; failed=1; continue; }
    if foreign=$(grep -vE "$pattern" <<<"$names"); then
        printf '%s shows symbols that do not match %s:\n%s\n' "$library" "$pattern" "$foreign" >&2
        failed=1
    else
        echo "symbols: $(wc -l <<<"$names") in $(basename "$library"), all $pattern"
    fi
done
exit "$failed"
