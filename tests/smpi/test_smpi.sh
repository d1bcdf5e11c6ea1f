#!/usr/bin/env bash
# A few plans over 8 simulated ranks: fails if one does not get through, if its messages have not the planned bytes, or if SMPI and
# leapgrad's simulator differ by more than a tenth. Builds the preset smpi in $LG_BINARY_DIR/smpi first.
# Ends with 77 where there is no clang-14 or no SimGrid.
set -euo pipefail
source=${LG_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
folder=${LG_BINARY_DIR:-$source/build}/smpi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cd "$source"
if ! command -v clang-14 >/dev/null ||
    ! printf '#include <smpi/smpi.h>\nint main(void) { return 0; }\n' |
    clang-14 -I/usr/include/smpi -x c - -lsimgrid -o /dev/null 2>"$log"; then
    echo "skipped: needs clang-14 and SimGrid (Debian: libsimgrid-dev)"
    exit 77
fi
if ! { cmake --preset smpi -B "$folder" -DLG_WERROR=OFF && cmake --build "$folder" -j 2 --target smpi_ranks; } >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
mapfile -t flags <tests/smpi/smpi_flags.txt

failed=0
while read -r -a words; do
    if ! timeout 150 "$folder/tests/smpi/smpi_ranks" "${words[@]}" hosts_of=4 poll_us=50 steps=4 within=0.1 timeout_s=30 "${flags[@]}"; then
        echo "failed: ${words[*]}" >&2
        failed=1
    fi
done <<'CASES'
bert-12 plan=fast-forward pipeline=8 batch=32 micro_batches=8 slots=2 gbit=9
bert-12 plan=1f1b+wfbp pipeline=4 replicas=2 batch=32 micro_batches=4 slots=2 gbit=22.5
resnet50 plan=priority replicas=8 batch=1024 gbit=22.5
CASES
exit $failed
