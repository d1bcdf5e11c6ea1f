#!/usr/bin/env bash
# Bad input of every kind: one line on stderr that names the file, key or op and what was expected, an exit code, and
# nothing half-written.
. "$(dirname "$0")/cli_fixture.sh" "$1"

bad() { # what, exit code, pattern, recipe, argument...: training it is refused and leaves no directory
    local what=$1 code=$2 pattern=$3 recipe=$4
    shift 4
    refused "$what" "$code" "$pattern" train "$recipe" run.dir=bad "$@"
    absent "$what: run directory" bad
}

# --- data files
head -c 1000 train-images >cut-images
bad "truncated images" 6 "cut-images.*1000" cnn.yaml data.train_images=cut-images
head -c 5 train-labels >cut-labels
bad "truncated labels" 6 "cut-labels" cnn.yaml data.train_labels=cut-labels
bad "wrong magic" 6 "train-labels.*(magic|images|0x)" cnn.yaml data.train_images=train-labels
printf 'hello, this is no image file' >hello
bad "no IDX at all" 6 "hello" cnn.yaml data.train_images=hello
gzip -kc train-images >images.gz && head -c 2000 images.gz >cut.gz
bad "truncated gzip" 6 "cut.gz" cnn.yaml data.train_images=cut.gz
{ cat train-images; echo more; } >longer
bad "bytes behind the end" 6 "longer" cnn.yaml data.train_images=longer
bad "labels out of range" 2 "label.*3" cnn.yaml data.num_classes=3
bad "images and labels of other counts" 2 "(200|50)" cnn.yaml data.train_labels=test-labels
bad "missing file" 5 "nowhere" cnn.yaml data.train_images=nowhere
perl -e 'binmode STDOUT; print pack("N4", 0x803, 50, 7, 9), "x" x (50 * 63)' >narrow
bad "test images of another size" 2 "narrow.*8" cnn.yaml data.test_images=narrow
: >empty
bad "empty text" 2 "empty" gpt.yaml data.text=empty
bad "missing text" 5 "nowhere" gpt.yaml data.text=nowhere
printf 'short' >short
bad "text shorter than a window" 2 "16|window|context" gpt.yaml data.text=short
bad "nothing is left to learn from" 2 "held_out" gpt.yaml data.held_out_frac=0.9 data.validation_frac=0.5

# What only the evaluation at the end would stumble on is found before training.
bad "test text shorter than a window" 2 "test data.*17" gpt.yaml data.held_out_frac=0.0001
bad "validation text shorter than a window" 2 "validation data.*17" gpt.yaml data.validation_frac=0.0002

# --- recipes
bad "missing recipe" 5 "nowhere.yaml" nowhere.yaml
bad "unknown key" 2 "train.stops" cnn.yaml train.stops=3
bad "value out of range" 2 "train.batch.*0" cnn.yaml train.batch=0
bad "the range is said exactly" 2 "beta2: '1' is not a number in .0, 0.9999999" gpt.yaml optim.beta2=1
bad "value of another type" 2 "train.batch.*many" cnn.yaml train.batch=many
bad "key given twice" 2 "train.batch.*twice" cnn.yaml train.batch=4 train.batch=5
bad "more micro-batches than samples" 2 "micro_batches" cnn.yaml train.micro_batches=17
bad "a model of text for images" 2 "model.kind" cnn.yaml model.kind=gpt
bad "neither steps nor epochs" 2 "train.steps" cnn.yaml train.steps=0
bad "depth that the model does not have" 2 "depth" cnn.yaml model.depth=11
bad "device that is not there" 2 "exec.device|device" cnn.yaml exec.device=tpu
bad "strategy that is not there" 2 "plan.strategy|strategy" cnn.yaml plan.strategy=random
bad "means of more channels" 2 "data.mean" cnn.yaml data.mean=0.1,0.2
sed 's/^optim:.*/optim: {lr: 0.1, lr: 0.2}/' cnn.yaml >twice.yaml
bad "key twice in a file" 2 "twice.yaml.*lr" twice.yaml
sed 's/^optim:.*/optim: {learning: 0.1}/' cnn.yaml >unknown.yaml
bad "unknown key in a file" 2 "unknown.yaml.*learning" unknown.yaml
printf 'run: {name: [' >broken.yaml
bad "no YAML" 2 "broken.yaml" broken.yaml

# --- plans and costs (faults in plans: test_cli_commands.sh)
echo '{"format": "leapgrad-plan"}' >plan.json
bad "a plan without its parts" 2 "plan.json" cnn.yaml plan.file=plan.json
echo 'nonsense' >plan.json
bad "no plan" 2 "plan.json" cnn.yaml plan.file=plan.json
bad "no costs" 2 "plan.json" cnn.yaml plan.costs=file plan.costs_file=plan.json
bad "missing plan" 5 "nowhere" cnn.yaml plan.file=nowhere

# --- checkpoints
train cnn.yaml run.dir=run train.steps=4
step=run/checkpoints/step-000004
damage() { # file, perl code on the contents
    rm -rf damaged && cp -r run damaged
    perl -0777 -i -pe "$2" "damaged/checkpoints/step-000004/$1"
    cmp -s "$step/$1" "damaged/checkpoints/step-000004/$1" && fail "$1 was not damaged: $2"
}
for file in model.safetensors optimizer.safetensors manifest.json; do
    damage $file '$_ = substr($_, 0, length($_) - 7)'
    refused "$file cut short" 6 "$file" eval damaged
    refused "$file cut short: going on" 6 "$file" train damaged --resume train.steps=9
    damage $file 'substr($_, length($_) / 2, 1) ^= "\x10"'
    refused "$file with a bit flipped" 6 "$file" eval damaged
    rm damaged/checkpoints/step-000004/$file
    refused "$file missing" 5 "$file" eval damaged
done
refused "weights of another model" 2 "features|shape|tensor" eval run model.growth=5
rm -rf damaged && cp -r run damaged && echo '{' >damaged/run.json
refused "damaged run.json" 6 "run.json" train damaged --resume train.steps=9

# --- places that cannot be written
refused "a run directory under a file" 5 "train-images/run" train cnn.yaml run.dir=train-images/run
refused "a run directory in /proc" 5 "/proc/run" train cnn.yaml run.dir=/proc/run
refused "a plan into nowhere" 5 "no/plan.json" plan cnn.yaml --out no/plan.json
check "a full device for the output" test -e /dev/full
rc=0
"$leapgrad" help >/dev/full 2>full.err || rc=$?
same "output that cannot be written" 5 "$rc"

# Standard streams that are closed: what is printed must not end up in a file that is opened instead.
rc=0
"$leapgrad" train cnn.yaml run.dir=closed train.steps=3 >&- 2>&- <&- || rc=$?
same "closed streams: exit code" 5 "$rc"
contains "closed streams: the run is finished" "$(cat closed/run.json)" '"state": "finished"'
same "closed streams: metrics have nothing else" "0" "$(grep -vc '^{"step":' closed/metrics.jsonl)"
check "closed streams: the checkpoint is good" "$leapgrad" eval closed

# A file that may not grow, at several sizes: sooner or later a write fails, in the middle of a file.
for kibibytes in 1 4 16 40 64; do
    rm -rf small && rc=0
    (ulimit -f $kibibytes && exec "$leapgrad" train cnn.yaml run.dir=small train.steps=6 model.growth=12) >small.out 2>small.err || rc=$?
    same "files of at most $kibibytes KiB: exit code" 5 "$rc"
    same "files of at most $kibibytes KiB: lines on stderr" 1 "$(wc -l <small.err)"
    same "files of at most $kibibytes KiB: nothing half-written" "none" \
        "$(find small \( -name '*tmp*' -o -name '.saving*' \) 2>/dev/null | grep . || echo none)"
    for json in small/run.json small/plan.json small/costs.json; do
        [ ! -e $json ] || check "$json is whole" perl -0777 -ne 'exit !/^\{.*\}\s*$/s' $json
    done
    [ ! -e small/checkpoints/latest ] || check "the checkpoint is whole" "$leapgrad" eval small
done

# A file system that is full, where one can be made.
mkdir disk
if mount -t tmpfs -o size=256k none disk 2>/dev/null; then
    refused "full disk" 5 "disk/run" train cnn.yaml run.dir=disk/run model.growth=24 train.steps=6
    same "full disk: nothing half-written" "none" "$(find disk \( -name '*tmp*' -o -name '.saving*' \) | grep . || echo none)"
    umount disk
else
    echo "a full file system was not tried: no right to mount one"
fi

# --- memory
bad "a plan that fits no budget" 4 "[0-9]+ bytes" cnn.yaml plan.memory_bytes=10K
if { (ulimit -v 3000000 && "$leapgrad" --version); } >/dev/null 2>&1; then
    rc=0
    (ulimit -v 3000000 && exec "$leapgrad" train cnn.yaml run.dir=bad model.kind=vgg model.depth=11 model.width=512 \
        model.hidden=16384) >memory.out 2>memory.err || rc=$?
    same "out of memory: exit code" 3 "$rc"
    same "out of memory: lines on stderr" 1 "$(wc -l <memory.err)"
    contains "out of memory: says so" "$(cat memory.err)" '^leapgrad: .*([0-9]+ bytes|memory)'
    absent "out of memory: run directory" bad
else
    echo "out of memory was not tried: this build does not start with limited memory"
fi

# Address space that runs out at some moment or other: perhaps it is enough, but nothing crashes.
if { (ulimit -v 250000 && "$leapgrad" --version); } >/dev/null 2>&1; then
    for kibibytes in 250000 300000 350000; do
        for recipe in cnn gpt; do
            rc=0
            (ulimit -v $kibibytes && exec "$leapgrad" train $recipe.yaml run.dir=scarce train.steps=3 exec.threads=2) \
                >scarce.out 2>scarce.err || rc=$?
            num_checks=$((num_checks + 1))
            [ $rc -lt 128 ] || fail "$recipe in $kibibytes KiB: status $rc: $(head -c 300 scarce.err)"
        done
    done
fi

# --- numbers that are none any more
refused "weights that run away" 2 "step [0-9]+: the loss is (nan|infinite); the last good checkpoint is that of step" \
    train cnn.yaml run.dir=run model.kind=vgg model.depth=11 model.width=4 model.hidden=8 model.batch_norm=false \
    model.dropout=0 train.steps=300 train.checkpoint_every=1 train.eval_every=0 optim.lr=1 optim.weight_decay=3 optim.momentum=0
contains "the run says so" "$(cat run/run.json)" '"state": "failed"'
contains "and why" "$(cat run/run.json)" '"message": "step [0-9]+: the loss'
check "the last good checkpoint is good" "$leapgrad" eval run

finish
