#!/usr/bin/env bash
# The main job on real data: a ResNet-20 on Fashion-MNIST, then a byte-level GPT on the King James Bible, and some text
# from it. Ends with where to look. Expects build/leapgrad; 'make demo' makes it.
# Usage: tools/demo.sh [KEY=VALUE...]   (overrides for both recipes)
# Environment: LEAPGRAD (the program), RUNS (where the run directories go, default runs)
set -euo pipefail
cd "$(dirname "$0")/.."
leapgrad=${LEAPGRAD:-build/leapgrad}
runs=${RUNS:-runs}
kjv=.cache/kjv.txt # as recipes/kjv-gpt.yaml has it
start=$SECONDS

number() { # run, key: a number of run.json
    sed -n "s/^[[:space:]]*\"$2\":[[:space:]]*\([-+0-9.eE]*\),\{0,1\}\$/\1/p" "$runs/$1/run.json" | head -n 1
}

reached() { # what, value, relation, bound
    if awk -v value="$2" -v bound="$4" "BEGIN { exit !(value != \"\" && value + 0 $3 bound + 0) }"; then
        printf '  %-46s %.4g (asked for: %s %s)\n' "$1" "$2" "$3" "$4"
    else
        printf '  %-46s %.6s MISSES %s %s\n' "$1" "${2:-none}" "$3" "$4"
        missed=1
    fi
}

if [ ! -s "$kjv" ]; then
    mkdir -p "$(dirname "$kjv")"
    tools/make_kjv.sh "$kjv"
fi

echo "== 1 of 2: ResNet-20 on Fashion-MNIST"
"$leapgrad" train recipes/fashion-resnet20.yaml "run.dir=$runs/fashion-resnet20" "$@"
echo
echo "== 2 of 2: GPT on the King James Bible, byte by byte"
"$leapgrad" train recipes/kjv-gpt.yaml "run.dir=$runs/kjv-gpt" "$@"
echo
echo "== what it writes"
"$leapgrad" generate "$runs/kjv-gpt" "--prompt=And God said "

missed=0
echo
echo "== result, after $((SECONDS - start)) s"
reached "Fashion-MNIST, accuracy on 10,000 test images" "$(number fashion-resnet20 test_accuracy)" '>=' 0.91
reached "King James, bits per byte, held-out part" "$(number kjv-gpt bits_per_byte)" '<' 2.5
echo
echo "Where to look:"
for run in fashion-resnet20 kjv-gpt; do
    echo "  $runs/$run/"
    for file in report.html timeline.svg trace.json run.json metrics.jsonl checkpoints; do
        [ ! -e "$runs/$run/$file" ] || echo "    $file"
    done
done
exit "$missed"
