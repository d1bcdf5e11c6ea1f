#!/usr/bin/env bash
# Installs PyTorch from PyPI into a virtual environment, for tools/make_fixtures.py and bench/.
# Usage: tools/setup_torch.sh      Environment: LEAPGRAD_TORCH_VENV (default build/venv)
# The last line printed is the environment's python.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${LEAPGRAD_TORCH_VENV:-build/venv}
version=2.15.0

if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" || { echo "python3 -m venv failed (Debian: apt-get install python3-venv)" >&2; exit 1; }
fi
if ! "$venv/bin/python" -c 'import numpy, torch' 2>/dev/null; then
    "$venv/bin/pip" install --quiet numpy "torch==$version"
fi
"$venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
echo "$venv/bin/python"
