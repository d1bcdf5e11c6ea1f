#!/usr/bin/env bash
# Removes what netns_up.sh has made: the namespaces of that name, and with them devices, addresses and shapes. Processes that
# still run in them keep running, without a network. Says nothing if there is nothing.
# Usage: netns_down.sh      Environment: LEAPGRAD_NETNS (default lgbench)
set -euo pipefail
. "$(dirname "$0")/netns_names.sh"
netns_list | while read -r name; do
    ip netns delete "$name"
done
