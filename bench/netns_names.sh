# Names and addresses of the made-up network of netns_up.sh; sourced by the scripts beside it.
# Host i is the namespace ${netns}-i with the address 10.77.0.(i+1); ${netns}-switch joins them.
netns=${LEAPGRAD_NETNS:-lgbench}
netns_device=mpi0
netns_prefix=10.77.0

netns_list() { # the namespaces that exist, hosts and switch
    ip netns list 2>/dev/null | awk -v name="$netns" 'index($1, name "-") == 1 { print $1 }'
}
