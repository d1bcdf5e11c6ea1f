#!/usr/bin/env bash
# What `make bench-papers` runs: builds bench/papers.c and prints its tables (arguments: sections, see there). With --write the
# tables of docs/papers.md are replaced by what is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
page=docs/papers.md
begin='<!-- tables: written by bench/papers.sh --write -->'
end='<!-- end of tables -->'
is_write=false
if [ "${1:-}" = --write ]; then
    is_write=true
    shift
fi
cmake --preset release -DLG_BENCH=ON >/dev/null
cmake --build --preset release -j "${JOBS:-$(nproc)}" --target bench_papers >/dev/null
if ! $is_write; then
    exec build/bench/bench_papers "$@"
fi
tables=$(mktemp)
merged=$(mktemp)
trap 'rm -f "$tables" "$merged"' EXIT
build/bench/bench_papers "$@" | tee "$tables"
awk -v begin="$begin" -v end="$end" -v tables="$tables" '
    $0 == begin { print; print ""; while ((getline line < tables) > 0) print line; skip = 1; seen++ }
    $0 == end { skip = 0; seen++ }
    !skip { print }
    END { exit seen != 2 }' "$page" >"$merged" || {
    echo "bench/papers.sh: $page lacks its two marks" >&2
    exit 1
}
cat "$merged" >"$page"
