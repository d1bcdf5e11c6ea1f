#!/usr/bin/env bash
# Runs a program as one MPI process on each host of netns_up.sh, over TCP, each on a core of its own.
# Usage: netns_mpirun.sh openmpi|mpich PROCESSES PROGRAM [ARGUMENT...]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/netns_names.sh"
[ $# -ge 3 ] || { echo "usage: $0 openmpi|mpich PROCESSES PROGRAM [ARGUMENT...]" >&2; exit 2; }
kind=$1
num=$2
shift 2
[ "$(netns_list | wc -l)" -gt "$num" ] || { echo "$0: netns_up.sh $num RATE comes first" >&2; exit 1; }
first=$netns-0
hosts=
for ((i = 1; i <= num; i++)); do
    hosts+="${hosts:+,}$netns_prefix.$i"
done
in_first() {
    exec ip netns exec "$first" unshare --uts bash -c 'hostname "$0"; exec "$@"' "$first" "$@"
}
case $kind in
openmpi)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    # The default socket buffers of 128 KiB halve what goes both ways at once.
    in_first mpirun.openmpi --host "${hosts//,/:1,}:1" -np "$num" --bind-to none \
        --mca plm_rsh_agent "$here/netns_agent.sh" --mca orte_keep_fqdn_hostnames true \
        --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include "$netns_prefix.0/24" \
        --mca oob_tcp_if_include "$netns_prefix.0/24" \
        --mca btl_tcp_sndbuf 4194304 --mca btl_tcp_rcvbuf 4194304 "$here/pin_rank.sh" "$@"
    ;;
mpich)
    in_first mpiexec.mpich -launcher rsh -launcher-exec "$here/netns_agent.sh" -hosts "$hosts" -iface "$netns_device" \
        -n "$num" -ppn 1 -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES "$netns_device" "$here/pin_rank.sh" "$@"
    ;;
*)
    echo "$0: '$kind' is neither openmpi nor mpich" >&2
    exit 2
    ;;
esac
