#!/usr/bin/env bash
# The large-batch study: its table in docs/lena.md is what its results say, and a run that broke off is not taken for one.
command -v python3 >/dev/null || exit 77
. "$(dirname "$0")/cli_fixture.sh" "$1"
export PYTHONDONTWRITEBYTECODE=1
script="${LG_SOURCE_DIR:?}/bench/large_batch.py"

check "tables from the results in the repository" python3 "$script" --report --out kept
table=$(sed -n '/^<!-- table: written by bench\/large_batch.py/,/^<!-- end of table/p' "$LG_SOURCE_DIR/docs/lena.md" | sed '1,2d;$d')
same "docs/lena.md has that table" "$(cat kept/table.md)" "$table"
for picture in iterations accuracy; do
    contains "a picture of $picture" "$(cat kept/large-batch-$picture.svg)" '</svg>'
done

# Two methods at one scale, seed 7: one reached 0.9 - 0.005 at step 20, the other ended below it.
mkdir own
cat >own/results.jsonl <<'JSON'
{"method": "single", "scale": 1, "budget": 1, "seed": 7, "exit": 0, "wall_s": 9, "cpu_s": 8, "steps": 100, "evals": [[50, 0.8], [100, 0.9]], "test": 0.88}
{"method": "ours", "scale": 128, "budget": 4, "seed": 7, "exit": 0, "wall_s": 9, "cpu_s": 8, "steps": 40, "evals": [[10, 0.85], [20, 0.8951], [40, 0.91]], "test": 0.89}
{"method": "linear", "scale": 128, "budget": 4, "seed": 7, "exit": 0, "wall_s": 9, "cpu_s": 8, "steps": 40, "evals": [[20, 0.5], [40, 0.8949]], "test": 0.87}
{"method": "sqrt", "scale": 128, "budget": 4, "seed": 7, "exit": 0, "wall_s": 9, "cpu_s": 8, "steps": 40, "evals": [[20, 0.5], [40, 0.99]], "te
JSON
truncate -s -1 own/results.jsonl
check "a report of its own" python3 "$script" --report --out own --seeds 7 --scales 128
contains "reached at step 20" "$(cat own/table.md)" '^\| 128 \| 4096 \| LENA, ours \| 1 of 1 \| 20 \|'
contains "not reached by a hair" "$(cat own/table.md)" '^\| 128 \| 4096 \| linear \| 0 of 1 \| – \|'
same "a line that broke off does not count" 0 "$(grep -c 'square root' own/table.md)"

finish
