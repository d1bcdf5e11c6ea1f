#!/usr/bin/env bash
# Schedules between leapgrad and PyTorch, with PyTorch's own code; skipped without PyTorch (LEAPGRAD_TORCH_VENV).
command -v python3 >/dev/null || exit 77
exec python3 "${LG_SOURCE_DIR:?}/tools/check_torch_csv.py" "$(realpath "$1")"
