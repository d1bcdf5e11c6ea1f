#!/usr/bin/env bash
# Builds tests/smpi and prints a table: steps of leapgrad's executor over 32 and 256 simulated ranks, 4 on each host, beside what
# leapgrad's own simulator says. Needs clang and SimGrid (Debian: clang-14, libsimgrid-dev). Up to 20 s of a core for 32 ranks, half a
# minute and 1 GB for 256.
# Usage: tests/smpi/run.sh [CASE...]      CASE: part of a line below; default all
set -euo pipefail
cd "$(dirname "$0")/../.."
cmake --preset smpi >/dev/null
cmake --build --preset smpi -j "${JOBS:-$(nproc)}" --target smpi_ranks >/dev/null
mapfile -t flags <tests/smpi/smpi_flags.txt
# The papers' settings; wires give 0.9 of what they say.
cases=()
for gbit in 9 22.5; do
    for plan in gpipe fast-forward zb-h2; do
        cases+=("bert-48 plan=$plan pipeline=32 batch=320 micro_batches=40 slots=2 gbit=$gbit poll_us=100")
    done
    for plan in wfbp priority reverse-first-k; do
        cases+=("resnet50 plan=$plan replicas=32 batch=4096 gbit=$gbit poll_us=50 steps=4")
    done
    cases+=("bert-48 plan=1f1b+wfbp pipeline=32 replicas=8 batch=512 micro_batches=8 slots=2 gbit=$gbit poll_us=500")
done
echo "| model | ranks | replicas | micro-batches | plan | Gbit/s | ops | SMPI, ms | simulator, ms | off | sent, MB | planned, MB |"
echo "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|"
failed=0
for words in "${cases[@]}"; do
    for wanted in "${@:-}"; do
        [[ $words == *"$wanted"* ]] || continue
        # shellcheck disable=SC2086
        if row=$(build/smpi/tests/smpi/smpi_ranks $words hosts_of=4 "${flags[@]}"); then
            python3 -c 'import json, sys
r = json.loads(sys.argv[1])
print("| {model} | {ranks} | {replicas} | {micro_batches} | {plan} | {gbit_per_s:g} | {ops} | {step_ms:.1f} | {predicted_ms:.1f} | {0:+.1f} % | {1:.2f} | {2:.2f} |".format(
    100 * r["off"], r["plan_bytes"] / 1e6, r["planned_bytes"] / 1e6, **r))' "$row"
        else
            echo "smpi: $words failed" >&2
            failed=1
        fi
        break
    done
done
exit $failed
