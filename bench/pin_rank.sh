#!/usr/bin/env bash
# Runs a program on one core, by the rank that the launcher gave it: two ranks that spin on one core wait milliseconds for a message.
# Usage: pin_rank.sh PROGRAM [ARGUMENT...]
set -euo pipefail
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:-${RANK:-0}}}}}
exec taskset -c $((rank % $(nproc))) "$@"
