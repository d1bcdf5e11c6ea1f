#!/usr/bin/env bash
# In place of ssh for mpirun and mpiexec: runs a command on a host of netns_up.sh, with a host name of its own.
# Usage: netns_agent.sh [-x] ADDRESS COMMAND...      ADDRESS: 10.77.0.1 is the first host
set -euo pipefail
. "$(dirname "$0")/netns_names.sh"
while [[ ${1:-} == -* ]]; do # hydra's rsh options
    shift
done
host=$netns-$((${1##*.} - 1))
shift
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
