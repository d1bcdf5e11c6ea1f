#!/usr/bin/env bash
# Every command on small recipes: what it prints, what it writes, and that the numbers agree with each other.
. "$(dirname "$0")/cli_fixture.sh" "$1"

# --- words
version=$("$leapgrad" --version)
contains "version" "$version" '^leapgrad [0-9]+\.[0-9]+\.[0-9]+$'
for command in train eval generate plan check show profile doctor; do
    contains "help lists $command" "$("$leapgrad" help)" "^  $command "
    contains "help of $command" "$("$leapgrad" $command --help)" "^usage: leapgrad $command"
    same "help $command is $command --help" "$("$leapgrad" help $command)" "$("$leapgrad" $command --help)"
done
contains "keys of recipes" "$("$leapgrad" help recipe)" 'train\.steps'
refused "no command" 2 "help"
refused "unknown command" 2 "unknown command 'trian'; did you mean train" trian cnn.yaml
refused "unknown option" 2 "unknown option '--resum'; did you mean --resume" train cnn.yaml --resum
refused "option twice" 2 "--out is given twice" plan cnn.yaml --out a --out=b
refused "option without its value" 2 "--out needs a value" plan cnn.yaml --out
refused "switch with a value" 2 "--resume takes no value" train cnn.yaml --resume=yes
refused "no recipe" 2 "usage: leapgrad train RECIPE" train
refused "a word too many" 2 "'gpt.yaml' is one word too many" train cnn.yaml gpt.yaml

# --- train
train cnn.yaml run.dir=cnn
for file in run.json metrics.jsonl recipe.yaml plan.json costs.json timeline.json timeline.svg timeline.csv trace.json report.html \
    checkpoints/latest checkpoints/step-000020/model.safetensors; do
    check "train writes $file" test -s cnn/$file
done
same "nothing half-written is left" "none" "$(find cnn \( -name '*tmp*' -o -name '.saving*' \) | grep . || echo none)"
for key in steps loss test_accuracy step_ms_median samples_per_s planned_peak_bytes measured_peak_bytes predicted_step_ms \
    num_reorders threads lanes cores planning_ms executor_overhead_frac seed; do
    contains "run.json has $key" "$(number_of cnn $key)" '^[0-9.e+-]+$'
done
for key in strategy weights_hash device version started_at ended_at state; do
    contains "run.json has $key" "$(cat cnn/run.json)" "\"$key\": \"[^\"]+\""
done
contains "run.json has the recipe" "$(cat cnn/run.json)" '"growth": 4'
same "planned is measured" "$(number_of cnn planned_peak_bytes)" "$(number_of cnn measured_peak_bytes)"
contains "evaluations print the hash" "$(cat train.out)" '^step 10  test loss [0-9.]+  accuracy [0-9.]+ %  weights_hash [0-9a-f]{32}$'
contains "the last hash is the run's" "$(grep '^step 20  test' train.out)" "$(hash_of cnn)"
contains "predicted and measured step" "$(cat train.out)" 'predicted [0-9.]+ ms, measured [0-9.]+ ms'
contains "where to look" "$(cat train.out)" 'cnn/report.html'
same "lines of metrics" "1 5 10 10 15 20 20" \
    "$(sed 's/^{"step":\([0-9]*\).*/\1/' cnn/metrics.jsonl | tr '\n' ' ' | sed 's/ $//')"
contains "the stored recipe is the effective one" "$(cat cnn/recipe.yaml)" 'momentum: 0.9'
train cnn.yaml run.dir=quiet train.epochs=2 train.steps=0 train.eval_every=0 --quiet
same "steps of two epochs of 13" 26 "$(number_of quiet steps)"
contains "evaluates after each epoch" "$(cat train.out)" '^step 13  test'

train gpt.yaml run.dir=gpt train.steps=60
contains "bits per byte" "$(number_of gpt bits_per_byte)" '^[0-9.]+$'
contains "a sample" "$(cat gpt/sample.txt)" '^in the '
same "bytes of the sample: prompt and tokens" 47 "$(wc -c <gpt/sample.txt)"
train gpt.yaml run.dir=validated train.eval_every=10 data.validation_frac=0.1
contains "validation during training" "$(cat train.out)" '^step 10  validation loss'
contains "test at the end" "$(cat train.out)" '^step 20  test loss'
same "test only at the end" 1 "$(grep -c '  test loss' train.out)"

# Masked text, and the other kinds of images.
train gpt.yaml run.dir=bert model.kind=bert data.kind=masked-text train.steps=5
contains "masked text: accuracy" "$(number_of bert test_accuracy)" '^[0-9.e-]+$'
for model in resnet vgg mobilenetv3-small; do
    train cnn.yaml run.dir=other model.kind=$model model.depth=0 model.width=4 model.hidden=8 model.width_mult=0.25 \
        train.steps=2 train.eval_every=0
done

# --- eval
eval_out=$("$leapgrad" eval cnn)
contains "eval: hash" "$eval_out" "weights_hash +$(hash_of cnn)"
accuracy=$(sed -n 's/^accuracy *//p' <<<"$eval_out")
same "eval gives the accuracy of the run" "$(printf %.4f "$(number_of cnn test_accuracy)")" "$accuracy"
same "eval of the checkpoint" "$eval_out" "$("$leapgrad" eval cnn/checkpoints/step-000020)"
same "eval of a text model" "$(printf %.6f "$(number_of gpt bits_per_byte)")" \
    "$("$leapgrad" eval gpt | sed -n 's/^bits_per_byte *//p')"
contains "eval of a part" "$("$leapgrad" eval validated --part validation)" '\(validation\)'
refused "eval of a part that is none" 2 "expected test or validation" eval cnn --part train
refused "eval of a part that was not kept" 2 "keeps no validation data" eval cnn --part validation
refused "eval of nothing" 5 "nowhere" eval nowhere

# --- generate
text=$("$leapgrad" generate gpt)
same "the same text as at the end of training" "$(cat gpt/sample.txt)" "$text"
same "the same text again, from the checkpoint" "$text" "$("$leapgrad" generate gpt/checkpoints/step-000060)"
same "options are keys" "$("$leapgrad" generate gpt generate.tokens=25 generate.temperature=0)" \
    "$("$leapgrad" generate gpt --tokens 25 --temperature=0)"
long=$("$leapgrad" generate gpt --tokens 90 --prompt "")
check "longer than the context" test ${#long} -ge 80
other=$("$leapgrad" generate gpt --seed 5)
check "another seed, another text" test "$other" != "$text"
mv text.txt moved.txt
same "needs no data" "$text" "$("$leapgrad" generate gpt)"
mv moved.txt text.txt
refused "generate from images" 2 "generates no text" generate cnn
refused "temperature below 0" 2 "generate.temperature" generate gpt --temperature=-1

# --- plan, check
plan_out=$("$leapgrad" plan cnn.yaml --out plan.json)
contains "plan: ops by kind" "$plan_out" '^weight_grad +[0-9]+'
contains "plan: lanes" "$plan_out" 'lane 0 +cores? 0'
contains "plan: time against bytes" "$plan_out" '\(in-order\) +[0-9.]+ [KM]iB'
contains "check" "$("$leapgrad" check cnn.yaml plan.json)" '^plan.json: ok: '
contains "check of a run" "$("$leapgrad" check cnn)" '^cnn/plan.json: ok: '
train cnn.yaml run.dir=replayed plan.file=plan.json
same "a saved plan gives the same bits" "$(hash_of cnn)" "$(hash_of replayed)"
check "the run has the plan that it was given" cmp plan.json replayed/plan.json
refused "plan of another recipe" 2 "another graph" check gpt.yaml plan.json
refused "plan of another batch size" 2 "another graph" train cnn.yaml run.dir=x train.batch=8 plan.file=plan.json
absent "nothing is written for it" x
refused "budget that the plan exceeds" 2 "plan.json.*(budget|memory|peak)" check cnn.yaml plan.json plan.memory_bytes=1000
refused "budget that nothing fits" 4 "[0-9]+ bytes" plan cnn.yaml plan.memory_bytes=1000

# Plans with a fault: an op left out, doubled, out of order; values that overlap; a wrong peak.
spoil() { # file, perl code on $_
    perl -0pe "$2" plan.json >"$1"
    num_checks=$((num_checks + 1))
    ! cmp -s plan.json "$1" || fail "the plan was not spoiled: $2"
}
spoil missing.json 's/\n *"forward\(features.conv0,0\)",//'
refused "op left out" 2 "features.conv0" check cnn.yaml missing.json
spoil doubled.json 's/(\n *"forward\(features.conv0,0\)",)/$1$1/'
refused "op twice" 2 "features.conv0" check cnn.yaml doubled.json
spoil swapped.json 's/(\n *"forward\(features.conv0,0\)",)(.*?)(\n *"loss\(loss,0\)",)/$3$2$1/s'
refused "op before what it needs" 2 "loss|features" check cnn.yaml swapped.json
spoil peak.json 's/("peak_bytes": \[\s*)\d+/${1}64/'
refused "wrong peak" 2 "peak|bytes" check cnn.yaml peak.json
spoil unknown.json 's/"forward\(features.conv0,0\)"/"forward(nothing,0)"/'
refused "unknown op" 2 "nothing" check cnn.yaml unknown.json

perl -MJSON::PP -0777 -ne '
    my $plan = decode_json($_);
    my $at = $plan->{values};
    my ($a, $b) = grep { /^param\(.*norm1\.weight\)$/ } sort keys %$at;
    @$at{$a, $b} = @$at{$b, $a};
    print JSON::PP->new->canonical->encode($plan);' plan.json >places.json
refused "weights where no other plan looks for them" 2 "places.json: 'param\(.*' lies at byte" check cnn.yaml places.json
refused "nor does training start with it" 2 "places.json.*lies at byte" train cnn.yaml run.dir=x plan.file=places.json
spoil control.json 's/"strategy": "/"strategy": "\\u001b[31m/'
refused "control characters in a name" 2 "strategy" check cnn.yaml control.json

# --- show, profile
check "show of a recipe" "$leapgrad" show cnn.yaml --out pictures
check "show of a saved plan" "$leapgrad" show cnn.yaml --plan plan.json --out pictures
for file in timeline.svg timeline.csv trace.json; do
    check "show writes $file" test -s pictures/$file
done
check "show of a run" "$leapgrad" show cnn --out pictures
contains "show: planned and measured" "$(cat check.out)" '^measured: strategy'
contains "picture" "$(head -c 300 pictures/timeline.svg)" '<svg'
refused "show into a folder that cannot be made" 5 "no/such/timeline.svg" show cnn --out no/such
check "profile" "$leapgrad" profile cnn.yaml --out measured.json
contains "profile: ops by kind" "$(cat check.out)" '^forward +[0-9]+'
train cnn.yaml run.dir=profiled plan.costs=file plan.costs_file=measured.json
same "measured costs give the same bits" "$(hash_of cnn)" "$(hash_of profiled)"

# What lanes cost each other is measured, and kept: a run is drawn as it was planned.
train cnn.yaml run.dir=lanes plan.costs=measure exec.lanes=2 exec.threads=1
same "the plan as it was predicted" "$(number_of lanes predicted_step_ms | xargs printf '%.2f')" \
    "$("$leapgrad" show lanes | perl -ne '/^planned: .*step ([0-9.]+) (us|ms),/ and printf("%.2f", $2 eq "us" ? $1 / 1000 : $1)')"

# --- doctor
doctor_out=$("$leapgrad" doctor)
for word in processor cores memory 'load +[0-9.]+ over the last minute' devices MPI CUDA Fashion-MNIST 'King James' environment; do
    contains "doctor: $word" "$doctor_out" "$word"
done
contains "doctor: waiting" "$(OMP_WAIT_POLICY=passive "$leapgrad" doctor)" 'OMP_WAIT_POLICY=passive: .*passive helps'
contains "doctor: environment" "$(OMP_PROC_BIND=true "$leapgrad" doctor)" 'OMP_PROC_BIND=true: .*unset'

finish
