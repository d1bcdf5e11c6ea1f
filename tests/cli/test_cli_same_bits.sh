#!/usr/bin/env bash
# The same hash of the weights under every strategy and number of lanes, at equal threads per op, for a network with batch
# norm and dropout and for a GPT with tied embeddings, with micro-batches, with ragged batches; and for a run twice.
. "$(dirname "$0")/cli_fixture.sh" "$1"

for device in $devices; do
    for recipe in cnn gpt; do
        for micro_batches in 1 2 3; do
            expected=
            for plan in "in-order 1" "out-of-order 1" "out-of-order 2" "in-order 2"; do
                read -r strategy lanes <<<"$plan"
                train $recipe.yaml run.dir=run exec.device=$device plan.strategy=$strategy exec.lanes=$lanes \
                    train.micro_batches=$micro_batches train.steps=15 train.eval_every=0 generate.tokens=0
                hash=$(hash_of run)
                contains "hash of $recipe" "$hash" '^[0-9a-f]{32}$'
                contains "hash of $recipe is printed" "$(cat train.out)" "weights_hash $hash"
                same "$recipe on $device, $micro_batches micro-batches, $strategy with $lanes lanes" \
                    "${expected:=$hash}" "$hash"
                same "$recipe, $strategy with $lanes lanes: planned is measured" \
                    "$(number_of run planned_peak_bytes)" "$(number_of run measured_peak_bytes)"
            done
        done
    done
done

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
