#!/usr/bin/env bash
# Plans for several ranks: plan, check, simulate, show, compare, schedules as CSV; closed forms; what is refused, by name.
. "$(dirname "$0")/cli_fixture.sh" "$1"
root=${LG_SOURCE_DIR:?}
machines=$root/machines

step_of() { # argument...: the simulated step
    "$leapgrad" simulate "$@" 2>&1 | sed -n 's/^  step  *\([0-9.]* [a-z]*\) simulated.*/\1/p'
}

# --- closed forms, F = I = W = 1 ms: 3 M (1 + (P - 1) / M) and what splitting backward takes off
equal=(--equal-times ranks.pipeline=4 train.micro_batches=8)
same "gpipe: 3 (M + P - 1)" "33.00 ms" "$(step_of "${equal[@]}" plan.strategy=gpipe)"
same "1f1b: the same" "33.00 ms" "$(step_of "${equal[@]}" --strategy 1f1b)"
same "interleaved: half the bubble" "28.50 ms" "$(step_of "${equal[@]}" --strategy interleaved)"
same "zb-h1: a third of it" "27.00 ms" "$(step_of "${equal[@]}" --strategy zb-h1)"
same "zb-v: none" "24.00 ms" "$(step_of "${equal[@]}" --strategy zb-v)"
same "many ranks, one micro-batch" "1.500 s" "$(step_of --equal-times ranks.pipeline=500 --strategy gpipe)"
same "modulo: a quarter of a stage less each" "26.00 ms" "$(step_of "${equal[@]}" --strategy modulo)"
same "one micro-batch, fewer than ranks" "12.00 ms" "$(step_of --equal-times ranks.pipeline=4 --strategy 1f1b)"

# --- a model on a machine
on_four=(--model bert-24 --machine "$machines/v100-nvlink-4.json" ranks.pipeline=4 train.micro_batches=8 train.batch=64)
check "plan" "$leapgrad" plan "${on_four[@]}" plan.strategy=zb-h1 --out plan.json
out=$("$leapgrad" simulate "${on_four[@]}" --plan plan.json)
contains "what it is for" "$out" '^bert-24: 24 blocks, [0-9]+ ops'
contains "ranks" "$out" '^  ranks +4: 1 replica x 4 pipeline ranks, 4 stages \(contiguous\)'
same "a row for each rank" 4 "$(grep -cE '^ +[0-3] +[0-9.]+ ms +[0-9.]+ % ' <<<"$out")"
same "the saved plan is as fast" "$(step_of "${on_four[@]}" plan.strategy=zb-h1)" "$(step_of "${on_four[@]}" --plan plan.json)"
contains "check" "$("$leapgrad" check "${on_four[@]}" plan.json)" '^ok: strategy zb-h1, 4 ranks'
sed 's/"input_grad(bert.encoder.layer.0.output.dense,0)[^"]*"/"gone"/' plan.json >broken.json
refused "a plan that lost an op" 2 "gone" check "${on_four[@]}" broken.json
refused "a plan of another graph" 2 "graph" check --model bert-24 --machine "$machines/v100-nvlink-4.json" ranks.pipeline=4 \
    train.micro_batches=4 train.batch=64 plan.json
contains "balanced is no slower" "$(step_of "${on_four[@]}" --strategy 1f1b ranks.placement=balanced)" ' ms$'
"$leapgrad" plan "${on_four[@]}" plan.strategy=zb-h1 --out >(cat >piped.json) >plan.out
for _ in 1 2 3 4 5 6 7 8 9 10; do cmp -s plan.json piped.json && break || sleep 0.2; done
check "a plan into a pipe" cmp plan.json piped.json
check "show" "$leapgrad" show "${on_four[@]}" plan.strategy=1f1b --out pictures
for file in timeline.svg timeline.csv trace.json plan.html; do
    check "show writes $file" test -s pictures/$file
done
for word in 'rank 3' 'F forward' 'send' 'stage 2, micro-batch 7'; do
    check "the picture has '$word'" grep -q "$word" pictures/timeline.svg
done
check "the trace has flows" grep -q '"ph":"s"' pictures/trace.json
same "each flow that begins ends" "$(grep -c '"ph":"s"' pictures/trace.json)" "$(grep -c '"ph":"f"' pictures/trace.json)"
out=$("$leapgrad" compare "${on_four[@]}" --strategies gpipe,1f1b,zb-h1,zb-v --out scatter.svg)
same "compare ranks all" 4 "$(grep -cE '^ +[1-4]  [a-z0-9-]+ +[0-9.]+ ms' <<<"$out")"
check "a picture of them" grep -q '<circle' scatter.svg
out=$("$leapgrad" search --model resnet20 --machine "$machines/v100-nvlink-4.json" ranks.pipeline=2 train.batch=4 train.micro_batches=2 --out found.json)
same "search ranks what it tried" yes "$(grep -qE '^ +1  [a-z0-9+-]+ ' <<<"$out" && echo yes)"
same "search says what cannot be beaten" yes "$(grep -q '^lower bound ' <<<"$out" && echo yes)"
same "and what it gained" yes "$(grep -qE '^(No gain over|[0-9.]+ ms a step)' <<<"$out" && echo yes)"
same "and the peaks of each rank" yes "$(grep -qE '^ +1 .* [0-9.]+ [0-9.]+ [KM]iB$' <<<"$out" && echo yes)"
same "search saves its plan" yes "$([ -s found.json ] && echo yes)"
out=$("$leapgrad" compare "${equal[@]}")
contains "all by default, fastest first" "$(sed -n 2p <<<"$out")" '^ +1  zb-(h2|v) .* 24\.00 ms'
contains "auto is among them" "$out" 'auto, placed as zb-'
contains "no gain in plain words" "$out" '^No gain over zb-'
contains "simulate prints the lower bound" "$("$leapgrad" simulate "${equal[@]}" plan.strategy=gpipe)" '^  bound +24\.00 ms; .* 37\.5 % longer'
refused "a plan without its recipe" 2 "'plan.json' is a plan; of which graph" check plan.json
refused "too little memory, and what helps" 4 "over the budget of 1073741824 bytes \(1.00 GiB\); more micro-batches \(now 2" simulate --model bert-12 \
    --machine "$machines/v100-nvlink-4.json" ranks.pipeline=4 train.batch=256 train.micro_batches=2 plan.strategy=gpipe \
    plan.memory_bytes=1GiB
out=$("$leapgrad" simulate --equal-times ranks.pipeline=2 ranks.replicas=2 train.micro_batches=4 plan.strategy=1f1b+priority)
contains "replicas" "$out" '^  ranks +4: 2 replicas x 2 pipeline ranks'
slow=(--model resnet20 --machine "$machines/cpu-2x1gbe.json" ranks.replicas=2 train.batch=4 plan.strategy=priority)
contains "sums of their own" "$("$leapgrad" simulate "${slow[@]}" ranks.share_bytes=0)" '^  sums +of 65 gradients over replicas in 43 reductions'
contains "sums by the links" "$("$leapgrad" simulate "${slow[@]}")" '^  sums +of 65 gradients over replicas in 1[0-9] reductions'
contains "sums in one" "$("$leapgrad" simulate "${slow[@]}" ranks.share_bytes=1G)" '^  sums +of 65 gradients over replicas in 2 reductions'
refused "bytes to share" 2 'ranks.share_bytes' simulate "${slow[@]}" ranks.share_bytes=-2

# --- recipes
cat gpt.yaml - >ranks.yaml <<YAML
ranks: {pipeline: 2, replicas: 2}
YAML
contains "a recipe with ranks" "$("$leapgrad" plan ranks.yaml plan.strategy=1f1b plan.machine="$machines/v100-nvlink-8.json")" \
    'the first 4 of its 8 ranks'
refused "one rank: a strategy that there is not" 2 "nonsense" plan gpt.yaml --strategy nonsense
contains "one rank: the strategy that is asked for" "$("$leapgrad" plan gpt.yaml --strategy in-order)" '^plan in-order on '
check "one rank: show draws it" "$leapgrad" show gpt.yaml --strategy in-order --out pictures
refused "one rank: show, a strategy that there is not" 2 "nonsense" show gpt.yaml --strategy nonsense
refused "one rank: check, which needs none" 2 "the plan has its strategy already" check gpt.yaml plan.json --strategy in-order
refused "a strategy that there is not, textbook times" 2 "nonsense" show --equal-times --strategy nonsense
spread=(ranks.pipeline=2 ranks.replicas=2 train.batch=12 train.micro_batches=2 exec.threads=1)
contains "profile for several ranks: one replica" "$("$leapgrad" profile gpt.yaml "${spread[@]}" --out spread.json)" \
    '^4 ranks: measured are the ops of one replica, 6 samples in micro-batches of 3'
on_eight=(--machine "$machines/v100-nvlink-8.json")
contains "its costs go with any placement" "$("$leapgrad" compare gpt.yaml "${spread[@]}" "${on_eight[@]}" plan.costs=file \
    plan.costs_file=spread.json --strategies 1f1b,zb-h1+priority)" '^ +1  zb-h1\+priority'
refused "but not with other micro-batches" 2 "spread.json: measured with 3 samples in a micro-batch, where this graph has 2" simulate \
    gpt.yaml "${spread[@]:0:2}" train.batch=8 train.micro_batches=2 exec.threads=1 "${on_eight[@]}" plan.costs=file \
    plan.costs_file=spread.json plan.strategy=1f1b
contains "one rank stays as it was" "$("$leapgrad" plan gpt.yaml)" 'time against bytes'

refused "a number that is none" 2 "profile: --ranks: '2x' is not an integer in \[1, " profile --links --ranks 2x
refused "a number beyond all" 2 "profile: --ranks: '99999999999'" profile --links --ranks 99999999999
(echo before && "$leapgrad" profile --links) >links.txt
same "a file behind standard output goes on" before "$(head -n 1 links.txt)"
same "with a machine" '{' "$(sed -n 2p links.txt | head -c 1)"

# --- schedules as CSV
for file in "$root"/tests/golden/schedules/*.csv; do
    case $file in
    */single-1f1b.csv) refused "PyTorch's broken order" 2 "line 4, action [0-9]+: '3F8'" simulate --csv "$file" ;;
    *) check "read $(basename "$file")" "$leapgrad" simulate --csv "$file" --out back.csv ;;
    esac
done
check "a schedule on a model" "$leapgrad" simulate --csv "$root/tests/golden/schedules/1f1b.csv" --model bert-24 \
    --machine "$machines/v100-nvlink-4.json" train.batch=64
check "draw one" "$leapgrad" show --csv "$root/tests/golden/schedules/zbv-zero-bubble.csv" --out pictures
check "check one" "$leapgrad" check --csv "$root/tests/golden/schedules/dualpipe-v-comms.csv"
check "write one" "$leapgrad" plan "${equal[@]}" plan.strategy=1f1b --out ours.csv
same "1f1b as everyone has it" "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7" "$(sed -n 4p ours.csv | tr -d '\r')"
same "and back" "33.00 ms" "$(step_of --csv ours.csv)"
refused "a schedule and a pipeline strategy" 2 "'zb-h1' has no part in it" simulate --csv ours.csv --strategy zb-h1
contains "a schedule and a strategy for replicas" "$("$leapgrad" simulate --csv ours.csv ranks.replicas=2 --strategy priority)" '2 replicas x 4'
printf '0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n' >deadlock.csv
refused "a deadlock" 2 "deadlock.csv: line 1, action 2: deadlock: '0B0' waits for '1B0' \(line 2, action 4\)" check --csv deadlock.csv
printf '0B0,0F0\n' >order.csv
refused "an order" 2 "line 1, action 1: '0B0' comes before '0F0'" show --csv order.csv

# --- what cannot be
refused "nothing to plan" 2 "of what\\? a recipe, --model" simulate
refused "an unknown model" 2 "bert-24" simulate --model bert-25 --machine "$machines/v100-nvlink-4.json"
refused "more stages than blocks" 2 "4 ranks of 50 stages each need 200 blocks; the model has 24" plan "${on_four[@]}" ranks.stages=50 plan.strategy=1f1b
refused "more ranks than the machine" 2 "is 8 ranks; .* has 4" plan --model bert-24 --machine "$machines/v100-nvlink-4.json" ranks.pipeline=8 plan.strategy=1f1b
refused "k beyond the layers" 2 "plan.reverse_first_k: 5000, but the model has [0-9]+ layers" simulate --model resnet50 \
    --machine "$machines/v100-nvlink-4.json" ranks.replicas=4 plan.strategy=reverse-first-k plan.reverse_first_k=5000
refused "push, which 1f1b does not know" 2 "plan.push: it is for fast-forward; the strategy '1f1b'" simulate "${equal[@]}" --strategy 1f1b plan.push=true
refused "nor modulo" 2 "plan.push: it is for fast-forward" simulate "${equal[@]}" --strategy modulo plan.push=true
refused "k, which priority does not know" 2 "plan.reverse_first_k: it is for reverse-first-k" simulate "${equal[@]}" \
    ranks.replicas=2 --strategy 1f1b+priority plan.reverse_first_k=2
check "fast-forward knows push" "$leapgrad" simulate "${equal[@]}" --strategy fast-forward plan.push=true
check "compare takes push where it is known" "$leapgrad" compare "${equal[@]}" --strategies fast-forward,1f1b plan.push=true
refused "no such budget" 2 "--budget=0: expected millions" search --model resnet20 --machine "$machines/v100-nvlink-4.json" \
    ranks.pipeline=2 --budget=0
refused "more micro-batches than samples" 2 "train.micro_batches: 100 " simulate "${on_four[@]}" train.micro_batches=100 plan.strategy=1f1b
refused "no machine" 2 "plan.machine: 4 ranks need a machine file" simulate --model bert-24 ranks.pipeline=4
refused "no such machine file" 5 "nowhere.json" simulate --model bert-24 --machine nowhere.json ranks.pipeline=4
perl -0pe 's/("intra_host".*?"bytes_per_s": *)[0-9.e+]+/${1}0/s' "$machines/v100-nvlink-4.json" >zero.json
refused "zero bandwidth" 2 "intra_host.bytes_per_s is 0" simulate --model bert-24 --machine zero.json ranks.pipeline=4
perl -0pe 's/,\s*"inter_host": *\{.*?\}//s' "$machines/v100-nvlink-4.json" >missing.json
refused "a missing link" 2 "missing.json.*inter_host" simulate --model bert-24 --machine missing.json ranks.pipeline=4
refused "a strategy that wants a V" 2 "zb-v: stages 0 and 7 are on ranks 0 and 3; placed in a V" simulate "${on_four[@]}" plan.strategy=zb-v ranks.placement=contiguous
refused "too little memory" 4 "over the budget|nothing fits" simulate "${on_four[@]}" plan.strategy=gpipe plan.memory_bytes=100M
refused "ranks that no machine has" 2 "is 4294967296 ranks, more than 65536" simulate --equal-times ranks.pipeline=65536 ranks.replicas=65536
refused "an option without a value, as of a variable that is not set" 2 "--out is empty" show "${equal[@]}" --strategy 1f1b --out ""
refused "times that are equal and from a file" 2 "plan.costs: times are from 'c.json' or all equal" simulate "${equal[@]}" plan.costs=file plan.costs_file=c.json
refused "times from a file without one" 2 "plan.costs_file: must be set" simulate "${on_four[@]}" plan.strategy=1f1b plan.costs=file
refused "a search with the times of one graph" 4 "search: plan.costs=file has the times of one size" search "${on_four[@]}" \
    plan.costs=file plan.costs_file=c.json
refused "a schedule and other ranks" 2 "ranks.pipeline: 2, but the schedule has 4" simulate --csv ours.csv ranks.pipeline=2
finish
