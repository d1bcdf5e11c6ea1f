#!/usr/bin/env bash
# What `make bench-ranks` runs: steps over two ranks, leapgrad's plans beside PyTorch's, over shared memory and over shaped links.
# Arguments go to bench/ranks.py: --quick (minutes), --cases pipeline-bert, --rounds 3, --list. The virtual environment with PyTorch is
# that of bench/run.sh (LEAPGRAD_TORCH_VENV, default build/venv).
set -euo pipefail
cd "$(dirname "$0")/.."
case " $* " in
*" --list "* | *" --help "* | *" -h "*) exec python3 bench/ranks.py - - "$@" ;; # nothing to build for it
esac
venv=${LEAPGRAD_TORCH_VENV:-build/venv}
cmake --preset release -DLG_BENCH=ON >/dev/null
cmake --build --preset release -j "${JOBS:-$(nproc)}" >/dev/null
tools/setup_torch.sh
exec python3 bench/ranks.py build/bench/bench_step_ranks "$venv/bin/python" "$@"
