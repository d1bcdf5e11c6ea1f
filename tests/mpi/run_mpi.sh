#!/usr/bin/env bash
# Runs a case of mpi_ranks under an MPI and looks at what came out.
# Usage: tests/mpi/run_mpi.sh openmpi|mpich NUM_RANKS MPI_RANKS_PROGRAM CASE
# Ends with 77 if that MPI is not there.
set -uo pipefail
flavor=$1 num_ranks=$2 program=$3 name=$4
. "$(dirname "$0")/launcher.sh"
lg_find_launcher "$flavor" "$(dirname "$program")/.." || exit 77

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Faults are told within seconds; the grid trains a few hundred times.
max_seconds=20
[ "$name" != grid ] || max_seconds=600
start=$SECONDS
timeout $((max_seconds + 40)) "${launcher[@]}" -n "$num_ranks" "$program" "$name" </dev/null >"$log" 2>&1
rc=$?
seconds=$((SECONDS - start))

failed=0
wrong() {
    echo "$name: $*" >&2
    failed=1
}
says() { # how often, what (a pattern)
    local count
    count=$(grep -c -E -- "$2" "$log")
    [ "$count" -ge "$1" ] || wrong "'$2' is said $count times, not $1"
}
[ "$seconds" -le $max_seconds ] || wrong "took $seconds s"
case $name in
check | grid | pause)
    [ "$rc" = 0 ] || wrong "ended with $rc"
    says 1 '^0 mistakes'
    ;;
*)
    [ "$rc" != 0 ] || wrong "ended with 0"
    [ "$rc" != 124 ] || wrong "hung"
    ;;
esac
others=$((num_ranks - 1))
case $name in
grid) says 1 '^[1-9][0-9]+ cases, 0 wrong$' ;;
failure)
    says $others '^rank [0-9]+ ends with COMM: rank 1: no memory for 3 GB$'
    says 1 '^rank 1 ends with OUT_OF_MEMORY: no memory for 3 GB$'
    ;;
leave) says $others '^rank [0-9]+ ends with COMM: .*a message of 8 bytes from rank 1 \(channel plan\): that rank has left$' ;;
circle) says "$num_ranks" '^rank . ends with TIMEOUT: .*no progress for [2-4].* s: rank 0 waits for rank 1, rank 1 waits for rank 2, rank 2 waits for rank 0$' ;;
short) says "$num_ranks" 'rank 0 sends 8 bytes to rank 1, which expects 16 \(channel plan\)$' ;;
long) says "$num_ranks" 'rank 0 sends more bytes to rank 1, which expects 16 \(channel plan\)$' ;;
silence) says $others '^rank [0-9]+ ends with TIMEOUT: .*rank 1 has given no sign of life for [2-4].* s \(last heard: step 12, WEIGHT_GRAD conv3\)$' ;;
storm) says $others '^rank [0-9]+ ends with TIMEOUT: .*rank 1 has given no sign of life for [2-4]' ;;
death) says 1 'signal 9' ;; # the launcher ends the others by itself
esac
if [ "$failed" != 0 ]; then
    echo "what was said, by the end with status $rc after $seconds s:" >&2
    cat "$log" >&2
fi
exit "$failed"
