#!/usr/bin/env bash
# What `make bench` runs: builds the measuring programs and compares training steps with PyTorch from PyPI, installed into
# a virtual environment of its own (LEAPGRAD_TORCH_VENV, default build/venv). Arguments go to bench/compare_torch.py.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${LEAPGRAD_TORCH_VENV:-build/venv}
cmake --preset release -DLG_BENCH=ON >/dev/null
cmake --build --preset release -j "$(nproc)" --target bench_step >/dev/null
tools/setup_torch.sh
python3 bench/compare_torch.py build/bench/bench_step "$venv/bin/python" "$@"
