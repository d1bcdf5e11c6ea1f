#!/usr/bin/env bash
# A run whose learning rate follows the batch goes on with another one: samples, averages and steps go on from where they are.
. "$(dirname "$0")/cli_fixture.sh" "$1"

# 8 samples are a base batch. 200 images: 13 steps of 16, or 7 of 32, are an epoch.
lena="optim.scaling=lena optim.variant=leapgrad optim.base_batch=8 optim.warmup=none optim.schedule=constant
      train.batch=16 train.micro_batches=2 train.log_every=1 exec.device=reference"
larger="train.batch=32 train.micro_batches=4"

last_epoch() { # run directory
    grep -o '"epoch":[0-9.]*' "$1/metrics.jsonl" | tail -n 1 | cut -d: -f2
}

steps_in_order() { # run directory
    grep '"epoch"' "$1/metrics.jsonl" | sed -E 's/.*"step":([0-9]+),.*/\1/' | sort -nu | wc -l
}

train cnn.yaml run.dir=run $lena train.epochs=1
per_epoch=$(number_of run steps)
same "steps of the first epoch" "$per_epoch" "$(steps_in_order run)"
before=$(head -n "$per_epoch" run/metrics.jsonl)

cp -r run whole
check "goes on with twice the batch" "$leapgrad" train whole --resume train.epochs=3 $larger
contains "it says so" "$(cat check.out)" "from step $((per_epoch + 1)) on a batch has 32 samples: S = 4"
same "what was logged stays" "$before" "$(head -n "$per_epoch" whole/metrics.jsonl)"
half=$(((per_epoch + 1) / 2))
same "steps are numbered on, and fewer" "$((per_epoch + 2 * half))" "$(number_of whole steps)"
same "no step is missing" "$(number_of whole steps)" "$(steps_in_order whole)"
same "the epochs asked for" 3.0 "$(last_epoch whole)"
contains "gains up to the new S" "$(tail -n 3 whole/metrics.jsonl)" '"gain/'
most=$(grep -o '"gain/[^:]*:[0-9.]*' whole/metrics.jsonl | cut -d: -f2 | sort -g | tail -n 1)
check "no gain is above S" perl -e 'exit !($ARGV[0] <= 4.0000001)' "$most"

# In two parts: where the data stand is in the checkpoint, also after a batch was changed.
cp -r run parts
check "goes on with twice the batch" "$leapgrad" train parts --resume train.epochs=2 $larger
check "and on" "$leapgrad" train parts --resume train.epochs=3
same "the same bits as in one go" "$(hash_of whole)" "$(hash_of parts)"

# In the middle of an epoch: samples that were seen are not seen again in it, but for a part of a batch.
train cnn.yaml run.dir=middle $lena train.steps=5
check "goes on in the middle" "$leapgrad" train middle --resume train.steps=0 train.epochs=1 $larger
same "the rest of the epoch in larger steps" "$((5 + half - 3))" "$(number_of middle steps)"
same "one epoch" 1.0 "$(last_epoch middle)"

# Back to the base batch, one micro-batch: nothing can be estimated then, and the rate is the plain one.
check "goes on at S = 1" "$leapgrad" train middle --resume train.epochs=2 train.batch=8 train.micro_batches=1
contains "it says so" "$(cat check.out)" "a batch has 8 samples: S = 1"
contains "the gain is 1" "$(tail -n 5 middle/metrics.jsonl)" '"gain/[^:]*conv[^:]*":1.0,'

train cnn.yaml run.dir=plain train.epochs=1 train.batch=16 exec.device=reference
refused "a batch that the rate does not follow" 2 "train.batch: the run has 16, the recipe 32; it may change" \
    train plain --resume train.batch=32 train.epochs=2

finish
