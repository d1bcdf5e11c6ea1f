#!/usr/bin/env bash
# A run that is stopped (SIGINT, SIGTERM) or killed goes on with --resume to the bits of one that was left alone.
. "$(dirname "$0")/cli_fixture.sh" "$1"

length="train.steps=400 train.eval_every=60 exec.device=reference"
often="train.checkpoint_every=25"

# Steps with their losses and evaluations, without times.
results_of() { # run directory
    sed -E 's/"(samples_per_s|step_ms)":[^,}]*,?//g' "$1/metrics.jsonl"
}

# Starts a run of `cnn.yaml` in the background and waits until it has done a part of it.
start() { # run directory, argument...
    local dir=$1
    shift
    "$leapgrad" train cnn.yaml "run.dir=$dir" $length "$@" >start.out 2>start.err &
    pid=$!
    for _ in $(seq 600); do
        [ "$(grep -c . "$dir/metrics.jsonl" 2>/dev/null)" -ge 12 ] 2>/dev/null && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.02
    done
    fail "the run in $dir did not get going: $(cat start.err)"
}

end() { # signal: sends it, and sets `rc`
    kill "-$1" "$pid"
    rc=0
    { wait "$pid"; } 2>/dev/null || rc=$?
}

train cnn.yaml run.dir=whole $length $often
expected=$(hash_of whole)
contains "the whole run" "$expected" '^[0-9a-f]{32}$'

for signal in INT TERM; do
    start stopped-$signal $often
    end $signal
    same "exit code after SIG$signal" 10 "$rc"
    same "lines on stderr" 1 "$(wc -l <start.err)"
    contains "state" "$(cat stopped-$signal/run.json)" '"state": "interrupted"'
    again=$(sed -n 's/^leapgrad: stopped after step [0-9]* of 400; to go on: //p' start.err)
    contains "it says how to go on" "$again" '--resume$'
    same "and says it when it is asked to stop" 0 "$(grep '^stopping' start.out | grep -vc -- '; to go on: .* --resume$')"
    check "its command goes on" bash -c "$again"
    same "hash after SIG$signal and going on" "$expected" "$(hash_of stopped-$signal)"
    same "no line of metrics doubled or lost" "$(results_of whole)" "$(results_of stopped-$signal)"
    contains "state" "$(cat stopped-$signal/run.json)" '"state": "finished"'
done

start killed $often
end KILL
same "exit code after SIGKILL" 137 "$rc"
contains "state" "$(cat killed/run.json)" '"state": "running"'
check "goes on" "$leapgrad" train killed --resume
same "hash after SIGKILL and going on" "$expected" "$(hash_of killed)"
same "no line of metrics doubled or lost" "$(results_of whole)" "$(results_of killed)"

# Killed in the middle of writing: what is half there goes away.
for name in run.json plan.json report.html timeline.svg; do
    echo half >killed/$name.tmp-123
done
echo mine >killed/notes.tmp-1
check "goes on, longer" "$leapgrad" train killed --resume train.steps=401
same "nothing half-written is left" "killed/notes.tmp-1" "$(find killed -name '*tmp*')"

# Killed between the last evaluation and the end: the evaluation is not written down twice.
perl -pi -e 's/"state": "finished"/"state": "running"/' killed/run.json
before=$(cat killed/metrics.jsonl)
check "goes on to the end" "$leapgrad" train killed --resume train.steps=401
contains "it is finished" "$(cat killed/run.json)" '"state": "finished"'
same "the same metrics" "$before" "$(cat killed/metrics.jsonl)"

# Resumed with another plan and killed: the picture of the earlier plan is gone with it.
train cnn.yaml run.dir=pictured train.steps=4 train.eval_every=0 plan.strategy=in-order exec.lanes=2 exec.device=reference
check "a measured timeline" test -s pictured/timeline.json
"$leapgrad" train pictured --resume exec.lanes=1 train.steps=4000 >start.out 2>&1 &
pid=$!
for _ in $(seq 600); do
    grep -q '"state": "running"' pictured/run.json && ! [ -e pictured/timeline.json ] && break
    sleep 0.02
done
sleep 0.1
end KILL
check "it can be drawn" "$leapgrad" show pictured

# Killed before the first checkpoint: from the beginning.
start early
end KILL
absent "no checkpoint yet" early/checkpoints
check "goes on from the beginning" "$leapgrad" train early --resume
same "hash" "$expected" "$(hash_of early)"

# With another plan, and with data that moved.
start moved $often
end INT
mkdir elsewhere && cp train-images elsewhere/
check "goes on with another plan" "$leapgrad" train cnn.yaml run.dir=moved $length $often plan.strategy=in-order exec.lanes=2 \
    exec.threads=2 data.train_images=elsewhere/train-images --resume
same "hash with another plan" "$expected" "$(hash_of moved)"
check "its plan is the one in the directory" "$leapgrad" check moved
check "and can be drawn" "$leapgrad" show moved

# Lanes and threads as the strategy likes, then another strategy, then two lanes of one thread: each plan fits its graph.
# On the device that people use: nothing of that shows in the bits.
free="train.steps=30 train.eval_every=0 train.checkpoint_every=10"
train cnn.yaml run.dir=free-whole $free exec.threads=1
train cnn.yaml run.dir=free $free train.epochs=0 exec.threads=0
steps=30
for how in "exec.threads=0 plan.strategy=in-order" "exec.threads=1 exec.lanes=2" "exec.threads=0 exec.lanes=0" "exec.threads=2"; do
    steps=$((steps + 10))
    check "goes on with $how" "$leapgrad" train free --resume $how train.steps=$steps
    check "$how: the plan of the run is proved" "$leapgrad" check free
    check "$how: the run can be drawn" "$leapgrad" show free
    check "$how: a longer run with one thread" "$leapgrad" train free-whole --resume train.steps=$steps
    same "$how: hash" "$(hash_of free-whole)" "$(hash_of free)"
done

# A plan that was given by a path that is gone: the run has its own copy.
check "a plan" "$leapgrad" plan cnn.yaml --out given.json
train cnn.yaml run.dir=given plan.file=given.json train.steps=4
rm given.json
check "check finds the plan of the run" "$leapgrad" check given
check "show finds the plan of the run" "$leapgrad" show given
check "resume finds the plan of the run" "$leapgrad" train given --resume train.steps=8

# What would change the bits is refused by name, and nothing is touched.
before=$(cat moved/run.json moved/metrics.jsonl)
refused "another batch" 2 "train.batch: the run has 16, the recipe 8" train moved --resume train.batch=8
refused "another learning rate" 2 "optim.lr: the run has 0.05" train moved --resume optim.lr=0.1
refused "another model" 2 "model.growth" train moved --resume model.growth=5
refused "another seed" 2 "train.seed" train moved --resume train.seed=9
refused "other device" 2 "exec.device: the run was on 'reference'" \
    train moved --resume exec.device=reference-f64 train.steps=500
make_images other 200 5
refused "other data" 2 "training data" train moved --resume data.train_images=other-images \
    data.train_labels=other-labels train.steps=500
refused "fewer steps than were done" 2 "has done 400 steps" train moved --resume train.steps=100
refused "no run" 2 "no run to go on with" train cnn.yaml run.dir=nowhere --resume
same "a refused run is as it was" "$before" "$(cat moved/run.json moved/metrics.jsonl)"

# Finished: nothing to do. Longer: as one run of that length (the schedule is constant).
check "a finished run" "$leapgrad" train whole --resume
contains "says so" "$(cat check.out)" "is finished"
train cnn.yaml run.dir=short train.steps=13 exec.device=reference train.eval_every=100
check "a longer one" "$leapgrad" train short --resume train.steps=40
train cnn.yaml run.dir=long train.steps=40 exec.device=reference train.eval_every=100
same "hash of a run made longer" "$(hash_of long)" "$(hash_of short)"

# A model of text, with AdamW, clipping and a schedule.
train gpt.yaml run.dir=text train.steps=300 exec.device=reference
"$leapgrad" train gpt.yaml run.dir=part train.steps=300 exec.device=reference >start.out 2>start.err &
pid=$!
for _ in $(seq 600); do
    [ "$(grep -c . part/metrics.jsonl 2>/dev/null)" -ge 6 ] 2>/dev/null && break
    sleep 0.01
done
end INT
check "goes on" "$leapgrad" train part --resume
same "hash of a text model" "$(hash_of text)" "$(hash_of part)"
same "sample of a text model" "$(cat text/sample.txt)" "$(cat part/sample.txt)"

# A sample without end can be stopped, too.
"$leapgrad" train gpt.yaml run.dir=endless train.steps=3 generate.tokens=1000000000 >start.out 2>start.err &
pid=$!
for _ in $(seq 600); do
    grep -q test_loss endless/metrics.jsonl 2>/dev/null && break
    sleep 0.02
done
sleep 0.2
end INT
same "exit code while a sample is drawn" 10 "$rc"
absent "no sample" endless/sample.txt
check "goes on" "$leapgrad" train endless --resume generate.tokens=5
same "bytes of the sample: prompt and tokens" 12 "$(wc -c <endless/sample.txt)"

# A finished run is kept when another one begins; a folder with other things in it is left alone.
first=$(hash_of long)
train cnn.yaml run.dir=long train.steps=3 exec.device=reference
same "the earlier run is kept" "$first" "$(hash_of long.previous)"
mkdir other && echo mine >other/notes
refused "a folder that is no run" 2 "not empty and no run" train cnn.yaml run.dir=other
same "it is as it was" "mine" "$(cat other/notes)"
start busy $often
refused "two runs in one directory" 2 "another process is training" train cnn.yaml run.dir=busy $length
end INT

finish
