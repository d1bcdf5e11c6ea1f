#!/usr/bin/env bash
# Draws the pictures of docs/schedules.md anew.
set -euo pipefail
cd "$(dirname "$0")/../.."
cmake --preset release -DLG_BENCH=ON >/dev/null
cmake --build --preset release -j "${JOBS:-$(nproc)}" --target bench_pictures >/dev/null
build/bench/bench_pictures docs/pictures
