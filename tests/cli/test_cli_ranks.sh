#!/usr/bin/env bash
# Runs over ranks that are threads of the program: the bits of one rank, stopping and going on, what they leave, what is refused.
. "$(dirname "$0")/cli_fixture.sh" "$1"

plain="exec.device=reference train.micro_batches=2 train.eval_every=10"

# Steps with their losses and evaluations, without times.
results_of() { # run directory
    sed -E 's/"(samples_per_s|step_ms)":[^,}]*,?//g' "$1/metrics.jsonl"
}

# --- the same bits on every number of pipeline ranks; batch norm, dropout, a ragged last batch, tied weights on two ranks
for recipe in cnn gpt; do
    train $recipe.yaml run.dir=$recipe-one $plain
    for how in "pipeline=2 plan.strategy=1f1b" "pipeline=2 plan.strategy=zb-h1" "pipeline=2 plan.strategy=modulo" \
        "pipeline=3 plan.strategy=gpipe ranks.placement=balanced"; do
        [ "$recipe ${how%% *}" = "gpt pipeline=3" ] && continue # it has two blocks
        train $recipe.yaml run.dir=$recipe-p $plain ranks.$how
        same "$recipe, $how" "$(hash_of $recipe-one)" "$(hash_of $recipe-p)"
        same "$recipe, $how: metrics" "$(results_of $recipe-one)" "$(results_of $recipe-p)"
    done
    # Replicas have bits of their own: of their number and the micro-batches.
    train $recipe.yaml run.dir=$recipe-d $plain ranks.replicas=2 plan.strategy=barrier
    for how in "pipeline=1 plan.strategy=priority" "pipeline=1 plan.strategy=reverse-first-k ranks.chunk_bytes=1K ranks.share_bytes=0" \
        "pipeline=1 plan.strategy=wfbp ranks.share_bytes=20K" \
        "pipeline=2 plan.strategy=1f1b+wfbp"; do
        train $recipe.yaml run.dir=$recipe-dp $plain ranks.replicas=2 ranks.$how
        same "$recipe, two replicas, $how" "$(hash_of $recipe-d)" "$(hash_of $recipe-dp)"
    done
done

# Rates from gradient statistics, which end the training early: the same on all ranks, and in every line.
rates="$plain train.steps=100 optim.scaling=lena optim.schedule_by=iteration optim.total_iterations=20 train.log_every=3"
train cnn.yaml run.dir=rates-one $rates
train cnn.yaml run.dir=rates-two $rates ranks.pipeline=2 plan.strategy=1f1b
same "rates: hash" "$(hash_of rates-one)" "$(hash_of rates-two)"
same "rates: metrics" "$(results_of rates-one)" "$(results_of rates-two)"
contains "rates: lines" "$(cat rates-two/metrics.jsonl)" '"step":3,.*"gain_median"'

# --- what a run says and leaves
most=$(sed -n 's/^peak bytes  planned \([0-9,]*\),.*/\1/p' train.out | tr -d ,)
same "memory that is expected: that of the fullest rank" "$(sed -n 's/^  expect .*, \(.*\) of memory on the fullest rank$/\1/p' train.out)" \
    "$(perl -e 'printf("%.2f %s", $ARGV[0] / ($ARGV[0] < 1048576 ? 1024 : 1048576), $ARGV[0] < 1048576 ? "KiB" : "MiB")' "$most")"
contains "ranks are threads" "$(cat train.out)" 'over threads of this process'
check "json" perl -MJSON::PP -e 'local $/; decode_json(<>)' cnn-dp/run.json
for key in bubble_frac exposed_comm_frac bytes_sent; do
    contains "$key" "$(number_of cnn-dp $key)" '^[0-9]'
done
same "a row for each rank" 4 "$(grep -c '"bubble_frac"' <(sed -n '/"ranks": \[/,/^  \]/p' cnn-dp/run.json))"
peaks=$(sed -n '/"ranks": \[/,/^  \]/p' cnn-dp/run.json)
same "planned and measured peaks are equal on all ranks" "$(sed -n 's/.*"planned_peak_bytes": //p' <<<"$peaks")" \
    "$(sed -n 's/.*"measured_peak_bytes": //p' <<<"$peaks")"
for rank in 0 1 2 3; do
    contains "measured ops of rank $rank" "$(grep '^measured' cnn-dp/timeline.csv)" "^measured,(\"[^\"]*\"|[^,]*),([^,]*,){5}$rank,"
done
contains "the report shows the ranks" "$(cat cnn-dp/report.html)" 'rank 3'
check "its plan is proved" "$leapgrad" check cnn-dp
"$leapgrad" show cnn-dp >show.out 2>show.err || fail "it is drawn again: $(cat show.err)"
same "a table of ranks, planned and measured" 8 "$(grep -Ec '^ +[0-3] +[0-9.]+ [mu]s +[0-9.]+ %' show.out)"
same "planned as in run.json" "$(number_of cnn-dp predicted_step_ms | xargs printf '%.3f')" \
    "$(perl -ne '/^planned: .*step ([0-9.]+) (us|ms),/ and printf("%.3f", $2 eq "us" ? $1 / 1000 : $1)' show.out)"
contains "the picture tells the step from the median" "$(cat cnn-dp/timeline.svg)" 'measured: one recorded step; median of all: [0-9.]+ ms'
contains "what is not known is not in the report" "$(grep -c 'executor_overhead_frac' cnn-dp/report.html)" '^0$'
contains "simulated with the links and costs of the run" "$("$leapgrad" simulate cnn-dp)" 'machine +cnn-dp/machine.json, costs of the run'

# --- on one rank
contains "eval" "$("$leapgrad" eval cnn-p)" "weights_hash +$(hash_of cnn-p)"
same "sample" "$(cat gpt-one/sample.txt)" "$(cat gpt-p/sample.txt)"
same "generate" "$(cat gpt-p/sample.txt)" "$("$leapgrad" generate gpt-p)"

# --- stopped, killed, and going on
length="train.steps=300 train.eval_every=60 train.checkpoint_every=25 exec.device=reference"
ranks="ranks.pipeline=2 ranks.replicas=2 plan.strategy=1f1b+priority train.micro_batches=2"
train cnn.yaml run.dir=whole $length $ranks
start() { # run directory
    "$leapgrad" train cnn.yaml "run.dir=$1" $length $ranks >start.out 2>start.err &
    pid=$!
    for _ in $(seq 600); do
        [ "$(grep -c . "$1/metrics.jsonl" 2>/dev/null)" -ge 12 ] 2>/dev/null && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.02
    done
    fail "the run in $1 did not get going: $(cat start.err)"
}
for signal in INT KILL; do
    start stopped-$signal
    kill -$signal $pid
    rc=0
    { wait $pid; } 2>/dev/null || rc=$?
    [ $signal = KILL ] || same "exit code after SIG$signal" 10 $rc
    [ $signal = KILL ] || same "lines on stderr" 1 "$(wc -l <start.err)"
    check "goes on after SIG$signal" "$leapgrad" train stopped-$signal --resume
    same "hash after SIG$signal" "$(hash_of whole)" "$(hash_of stopped-$signal)"
    same "metrics after SIG$signal" "$(results_of whole)" "$(results_of stopped-$signal)"
done
start moved
kill -INT $pid
{ wait $pid; } 2>/dev/null
check "goes on without the pipeline" "$leapgrad" train moved --resume ranks.pipeline=1 plan.strategy=wfbp
same "hash without the pipeline" "$(hash_of whole)" "$(hash_of moved)"
refused "other replicas" 2 "ranks.replicas: the run has 2" train moved --resume ranks.replicas=1 train.steps=400
contains "a finished run" "$("$leapgrad" train whole --resume)" "is finished"

# --- what cannot go well is refused, in one line
refused "more stages than blocks" 2 "64" train cnn.yaml run.dir=bad ranks.pipeline=64 plan.strategy=gpipe
refused "more ranks than threads" 2 "1024" train cnn.yaml run.dir=bad ranks.replicas=5000
refused "a k that is too large" 2 "plan.reverse_first_k: 1000" train cnn.yaml run.dir=bad ranks.replicas=2 \
    plan.strategy=reverse-first-k plan.reverse_first_k=1000
refused "more micro-batches than samples" 2 "train.micro_batches: 9 in each of 2 replicas" train cnn.yaml run.dir=bad \
    ranks.replicas=2 train.micro_batches=9
refused "an unknown strategy" 2 "plan.strategy" train cnn.yaml run.dir=bad ranks.pipeline=2 plan.strategy=nonsense
refused "too little memory" 4 "[0-9]+ bytes" train cnn.yaml run.dir=bad ranks.pipeline=2 plan.strategy=1f1b plan.memory_bytes=10K
refused "missing data" 5 "nowhere" train cnn.yaml run.dir=bad ranks.pipeline=2 plan.strategy=1f1b data.train_images=nowhere
refused "weights that run away" 2 "the loss is (nan|infinite)" train cnn.yaml run.dir=nan ranks.pipeline=2 plan.strategy=1f1b \
    train.micro_batches=2 optim.lr=1e6 model.kind=vgg model.depth=11 model.width=4 model.hidden=8 model.batch_norm=false \
    model.dropout=0 train.steps=300 train.eval_every=0
contains "the run says so" "$(cat nan/run.json)" '"state": "failed"'
absent "no run of what was refused" bad

# Plans from files: run as they are, after they are proved.
again="$plain ranks.pipeline=2 plan.strategy=modulo plan.file=plan.json"
cp gpt-p/plan.json plan.json
check "a plan of a run is run again" "$leapgrad" train gpt.yaml run.dir=again $again
same "with the same bits" "$(hash_of gpt-p)" "$(hash_of again)"
perl -MJSON::PP -e 'local $/; my $plan = decode_json(<>);
    @{$plan->{lanes}[0]{ops}} = reverse @{$plan->{lanes}[0]{ops}}; print encode_json($plan)' gpt-p/plan.json >plan.json
refused "a plan whose ranks would wait for each other" 2 "plan.json" train gpt.yaml run.dir=bad $again

# A full disk under rank 0: all ranks end, the last checkpoint is whole.
if command -v prlimit >/dev/null; then
    rc=0
    (ulimit -f 60 && exec "$leapgrad" train cnn.yaml run.dir=full ranks.pipeline=2 plan.strategy=1f1b train.steps=3000 \
        train.log_every=1 train.eval_every=0 train.checkpoint_every=50 exec.device=reference) >full.out 2>full.err || rc=$?
    same "full disk: exit code" 5 $rc
    same "full disk: lines on stderr" 1 "$(wc -l <full.err)"
    check "full disk: the checkpoint is whole" "$leapgrad" eval full
fi

# --- the self-test
"$leapgrad" selftest >selftest.out 2>selftest.err || fail "selftest: $(tail -n 3 selftest.out selftest.err)"
contains "selftest" "$(cat selftest.out)" 'cases, all with the bits of one process'
contains "links" "$(cat selftest.out)" 'ranks 0 and 1: latency'
same "no case with other bits" 0 "$(grep -c ' NO ' selftest.out)"
contains "cases" "$(grep -c ' yes ' selftest.out)" '^(2[0-9]|[3-9][0-9])$'
check "links as a machine file" "$leapgrad" profile --links --out links.json
same "its rates are measured, not the defaults" 0 "$(grep -Ec '"(flops_per_s": 50000000000\.0|bytes_per_s": 10000000000\.0)' links.json)"
contains "it says what is not" "$(cat links.json)" '"comment": "measured: intra_host .* not measured.* inter_host'
"$leapgrad" profile --links >printed.json 2>printed.err || fail "links are printed: $(cat printed.err)"
check "what is printed is a machine file" "$leapgrad" simulate --model bert-24 --machine printed.json ranks.pipeline=2 \
    plan.strategy=1f1b
check "a pipe is written to" sh -c '"$1" profile --links --out /dev/fd/3 3>&1 | grep -q leapgrad-machine' sh "$leapgrad"
check "which can be used" "$leapgrad" simulate --model bert-24 --machine links.json ranks.pipeline=2 plan.strategy=1f1b
refused "a pipeline that does not divide" 2 "do not divide" selftest --ranks 3 --pipeline 2

finish
