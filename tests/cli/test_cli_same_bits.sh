#!/usr/bin/env bash
# The same hash of the weights under every strategy, number of lanes and number of threads, for a network with batch norm and
# dropout and for a GPT with tied embeddings, with micro-batches, with ragged batches; and for a run twice.
. "$(dirname "$0")/cli_fixture.sh" "$1"

for device in $devices; do
    for recipe in cnn gpt; do
        for micro_batches in 1 2 3; do
            expected=
            for plan in "in-order 1 1" "out-of-order 1 2" "out-of-order 2 1" "in-order 2 2" "out-of-order 0 0"; do
                read -r strategy lanes threads <<<"$plan"
                train $recipe.yaml run.dir=run exec.device=$device plan.strategy=$strategy exec.lanes=$lanes exec.threads=$threads \
                    train.micro_batches=$micro_batches train.steps=15 train.eval_every=0 generate.tokens=0
                hash=$(hash_of run)
                contains "hash of $recipe" "$hash" '^[0-9a-f]{32}$'
                contains "hash of $recipe is printed" "$(cat train.out)" "weights_hash $hash"
                same "$recipe on $device, $micro_batches micro-batches, $strategy with $lanes lanes of $threads" \
                    "${expected:=$hash}" "$hash"
                same "$recipe, $strategy with $lanes lanes: planned is measured" \
                    "$(number_of run planned_peak_bytes)" "$(number_of run measured_peak_bytes)"
            done
        done
    done
done

# More lanes and threads than cores; and what the environment says about OpenMP, or where the process may run, is no part of
# the result either. Where it cannot be had (fewer threads than a kernel was made for), it is refused.
train cnn.yaml run.dir=run train.steps=15
expected=$(hash_of run)
for how in "exec.lanes=3" "exec.threads=3" "exec.lanes=5 exec.threads=2" "exec.threads=64"; do
    train cnn.yaml run.dir=run train.steps=15 $how
    same "$how" "$expected" "$(hash_of run)"
done
for setting in OMP_DYNAMIC=true OMP_MAX_ACTIVE_LEVELS=0 OMP_NUM_THREADS=1 OMP_PROC_BIND=true OMP_SCHEDULE=dynamic,1; do
    export "${setting?}"
    train cnn.yaml run.dir=run train.steps=15 exec.threads=2 exec.lanes=2
    unset "${setting%%=*}"
    same "$setting" "$expected" "$(hash_of run)"
done
taskset -c "$(taskset -pc $$ | sed 's/.*: //; s/[-,].*//')" "$leapgrad" train cnn.yaml run.dir=run train.steps=15 exec.threads=0 >train.out 2>&1
same "on one core" "$expected" "$(hash_of run)"
contains "it keeps to that core" "$(cat train.out)" '; 1 core$'
if [[ $devices == *cpu* ]]; then
    export OMP_THREAD_LIMIT=1
    refused "fewer threads than asked for" 2 "OMP_THREAD_LIMIT" train cnn.yaml run.dir=limited exec.threads=2
    unset OMP_THREAD_LIMIT
    absent "no run" limited
fi

# Different computations must differ, else the comparison above proves nothing.
train cnn.yaml run.dir=run train.steps=15 train.seed=2
other=$(hash_of run)
train cnn.yaml run.dir=run train.steps=15
num_checks=$((num_checks + 1))
[ "$other" != "$(hash_of run)" ] || fail "another seed gives the same hash"

# Prefetching is no part of the result; neither is how often it evaluates.
expected=$(hash_of run)
train cnn.yaml run.dir=run train.steps=15 data.prefetch=0 train.eval_every=4
same "without prefetch, with other evaluations" "$expected" "$(hash_of run)"

finish
