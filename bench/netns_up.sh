#!/usr/bin/env bash
# Makes hosts out of nothing: network namespaces on this machine, joined by a bridge, every wire shaped to a rate in both
# directions. Bandwidth is real, latency stays that of the kernel (about 10 us). Needs root (CAP_NET_ADMIN) and iproute2.
# Usage: netns_up.sh HOSTS RATE        RATE: what tc understands: 100mbit, 1gbit
# Environment: LEAPGRAD_NETNS, the first part of the namespaces' names (default lgbench). What is there under that name is
# removed first; whatever fails, nothing stays. netns_down.sh removes all of it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/netns_names.sh"
[ $# = 2 ] && [[ $1 =~ ^[1-9][0-9]?$ ]] || { echo "usage: $0 HOSTS RATE  (1 to 99 hosts; 100mbit, 1gbit)" >&2; exit 2; }
num_hosts=$1
rate=$2
for program in ip tc; do
    command -v "$program" >/dev/null || { echo "$0: no '$program' (Debian: iproute2)" >&2; exit 1; }
done
if ! problem=$(ip netns add "$netns-probe" 2>&1); then
    echo "$0: network namespaces need root or CAP_NET_ADMIN and CAP_SYS_ADMIN ($(head -n 1 <<<"$problem"))" >&2
    exit 1
fi
ip netns delete "$netns-probe"
"$here/netns_down.sh"
trap '"$here/netns_down.sh"' ERR INT TERM

# Segments of 16 KB: cutting them into frames is the work of a network card, which nothing here has, and would take a third of the
# cores' time at 1 Gbit/s. A bucket of 64 KB: what is sent is held to the rate from the first message on, and no segment is cut.
shape() { # namespace, device
    ip -n "$1" link set "$2" gso_max_size 65536
    tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" burst 96kb latency 50ms
}

switch=$netns-switch
ip netns add "$switch"
ip -n "$switch" link add br0 type bridge
ip -n "$switch" link set br0 up
# Where a firewall wants to see what bridges carry, this one has nothing for it.
for key in ip ip6 arp; do
    ip netns exec "$switch" sysctl -qw "net.bridge.bridge-nf-call-${key}tables=0" 2>/dev/null || true
done
for ((i = 0; i < num_hosts; i++)); do
    host=$netns-$i
    ip netns add "$host"
    ip link add "$netns_device" netns "$host" type veth peer name "p$i" netns "$switch"
    ip -n "$host" addr add "$netns_prefix.$((i + 1))/24" dev "$netns_device"
    ip -n "$host" link set lo up
    ip -n "$host" link set "$netns_device" up
    ip -n "$switch" link set "p$i" master br0
    ip -n "$switch" link set "p$i" up
    shape "$host" "$netns_device"
    shape "$switch" "p$i"
done
