#!/usr/bin/env bash
# Runs over ranks that are processes: the bits of threads, under every MPI that is here; ranks that are stopped, killed, frozen, cannot
# read a file, or were told something else.
tests=$(cd "$(dirname "$0")/.." && pwd)
. "$tests/cli/cli_fixture.sh" "$1"
. "$tests/mpi/launcher.sh"
build=$(dirname "$leapgrad")

ranks="ranks.pipeline=2 plan.strategy=1f1b train.micro_batches=2 exec.device=reference"
long="$ranks train.steps=1000000 train.eval_every=0 train.checkpoint_every=50 ranks.timeout_s=2"

# Rank 1 has something of its own: words that are added to its command, another program, a folder with other files, little memory.
cat >odd.sh <<'SH'
#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
program=$1
shift
[ "$rank" = 1 ] || exec "$program" "$@"
program=${ODD_PROGRAM:-$program}
cd "${ODD_FOLDER:-.}"
[ -z "$ODD_KIBIBYTES" ] || ulimit -v "$ODD_KIBIBYTES"
exec "$program" "$@" $ODD_WORDS
SH
chmod +x odd.sh

mpi() { # number of ranks, argument...
    local num=$1
    shift
    "${launcher[@]}" -n "$num" "$leapgrad" "$@"
}

refused_by_mpi() { # what, regular expression, environment words, argument...: a line of leapgrad's own, and no success
    local what=$1 pattern=$2 rc=0
    shift 2
    num_checks=$((num_checks + 1))
    timeout 60 "${launcher[@]}" -n 2 ./odd.sh "$leapgrad" "$@" >refused.out 2>refused.err </dev/null || rc=$?
    [ $rc != 0 ] && [ $rc != 124 ] || fail "$what: exit code $rc"
    grep -Eq -- "^leapgrad: .*($pattern)" refused.err || fail "$what: no match of '$pattern' in: $(head -c 600 refused.err)"
    [ "$(grep -c '^leapgrad: ' refused.err)" = 1 ] || fail "$what: not one line: $(grep '^leapgrad: ' refused.err)"
}

# Starts a long run and waits for its first checkpoint; sets `pid`, and pids[rank].
start() { # run directory, launcher's option...
    local dir=$1
    shift
    "${launcher[@]}" "$@" -n "${num_ranks:-2}" "$leapgrad" train cnn.yaml run.dir="$dir" ${keys:-$long} >start.out 2>start.err </dev/null &
    pid=$!
    for _ in $(seq 600); do
        [ -e "$dir/checkpoints/latest" ] && break
        sleep 0.05
    done
    [ -e "$dir/checkpoints/latest" ] || fail "the run in $dir did not get going: $(head -c 300 start.err)"
    pids=()
    local process rank
    for process in /proc/[0-9]*; do
        [ "$(cat "$process/comm" 2>/dev/null)" = leapgrad ] || continue
        [ "$(readlink "$process/cwd")" = "$work" ] || continue
        grep -qz "^run.dir=$dir\$" "$process/cmdline" 2>/dev/null || continue
        rank=$(tr '\0' '\n' <"$process/environ" | sed -nE 's/^(OMPI_COMM_WORLD_RANK|PMI_RANK)=//p' | head -n 1)
        [ -n "$rank" ] && pids[$rank]=${process#/proc/}
    done
}

# Waits for the end of what start() started; sets `rc`. It must come soon.
end() { # what
    num_checks=$((num_checks + 1))
    for _ in $(seq 400); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    if kill -0 "$pid" 2>/dev/null; then
        fail "$1: it hangs"
        kill -KILL "${pids[@]}" "$pid" 2>/dev/null
    fi
    rc=0
    { wait "$pid"; } 2>/dev/null || rc=$?
    kill -KILL "${pids[@]}" 2>/dev/null # those that are still frozen
    return 0
}

# Folders of rank 1: with other labels, without one file, with nothing.
mkdir other lacking empty
cp ./*.yaml text.txt train-images train-labels test-images test-labels other
cp ./*.yaml text.txt train-images train-labels test-images lacking
(cd other && make_images train 200 5)

num_flavors=0
for flavor in openmpi mpich; do
    lg_find_launcher $flavor "$build" || continue
    num_flavors=$((num_flavors + 1))

    # --- the bits of threads
    for recipe in cnn gpt; do
        [ -e $recipe-local ] || train $recipe.yaml run.dir=$recipe-local $ranks
        check "$flavor: $recipe" mpi 2 train $recipe.yaml run.dir=$flavor-$recipe $ranks
        same "$flavor: $recipe: hash" "$(hash_of $recipe-local)" "$(hash_of $flavor-$recipe)"
        contains "$flavor: its name" "$(cat $flavor-$recipe/run.json)" '"comm": "(Open MPI|MPICH)'
    done
    check "$flavor: two replicas" mpi 2 train cnn.yaml run.dir=$flavor-d ranks.replicas=2 plan.strategy=priority exec.device=reference
    [ -e d-local ] || train cnn.yaml run.dir=d-local ranks.replicas=2 plan.strategy=barrier exec.device=reference
    same "$flavor: two replicas: hash" "$(hash_of d-local)" "$(hash_of $flavor-d)"
    contains "$flavor: only rank 0 talks" "$(grep -c '^weights_hash' check.out)" '^1$'

    # --- what ranks must have alike
    ODD_FOLDER=other refused_by_mpi "$flavor: other data" "training data.*rank" train cnn.yaml run.dir=bad $ranks
    version=$("$leapgrad" --version | sed 's/^leapgrad //')
    ODD_PROGRAM=$build/tests/leapgrad_other_version refused_by_mpi "$flavor: another version" \
        "version of leapgrad of rank 1 is not that of rank 0: line 1 is 'other', on rank 0 '$version'" train cnn.yaml run.dir=bad $ranks
    ODD_PROGRAM=$build/tests/leapgrad_other_version refused_by_mpi "$flavor: another version, selftest" "version of leapgrad of rank 1" \
        selftest --pipeline=2
    if [ $flavor = mpich ]; then # the rest is not about the launcher
        refused_by_mpi "$flavor: too few ranks" "2 processes were started, but the recipe is for one rank; set ranks.replicas=2" \
            train cnn.yaml run.dir=bad
        refused_by_mpi "$flavor: too many ranks" "2 processes were started, but .* is 4" \
            train cnn.yaml run.dir=bad ranks.pipeline=2 ranks.replicas=2
        ODD_WORDS=optim.lr=0.1 refused_by_mpi "$flavor: another recipe" "recipe.*rank.*lr: 0.1" train cnn.yaml run.dir=bad $ranks
        cp $flavor-gpt/plan.json plan.json
        sed 's/"first_core": *0/"first_core": 1/' plan.json >other/plan.json
        ! cmp -s plan.json other/plan.json || fail "$flavor: the other plan is the same"
        ODD_FOLDER=other refused_by_mpi "$flavor: another plan" "plan.file of rank 1 is not that of rank 0: line [0-9]+ is .*first_core" \
            train gpt.yaml run.dir=bad $ranks plan.file=plan.json
        check "$flavor: a plan from a file" mpi 2 train gpt.yaml run.dir=$flavor-again $ranks plan.file=plan.json
        same "$flavor: a plan from a file: hash" "$(hash_of gpt-local)" "$(hash_of $flavor-again)"
        ODD_FOLDER=lacking refused_by_mpi "$flavor: a plan that one rank lacks" "rank 1: .*plan.json" \
            train gpt.yaml run.dir=bad $ranks plan.file=plan.json
        ODD_WORDS=--resume refused_by_mpi "$flavor: another option" "command of rank 1 .*'train --resume', on rank 0 'train'" train \
            cnn.yaml run.dir=bad $ranks
        ODD_FOLDER=lacking refused_by_mpi "$flavor: data that one rank lacks" "rank 1: .*test-labels" train cnn.yaml run.dir=bad $ranks
        ODD_FOLDER=empty refused_by_mpi "$flavor: a recipe that one rank lacks" "rank 1: .*cnn.yaml" train cnn.yaml run.dir=bad $ranks
        if { (ulimit -v 300000 && "$leapgrad" --version); } >/dev/null 2>&1; then
            ODD_KIBIBYTES=300000 refused_by_mpi "$flavor: a rank without memory" "rank 1: .*(bytes|thread|memory)" \
                train cnn.yaml run.dir=bad $ranks model.kind=vgg model.depth=11 model.width=64 model.hidden=4096
        fi
    fi
    absent "$flavor: no run of it" bad

    # --- Ctrl-C: to all, or to one of them
    for who in $([ $flavor = mpich ] && echo all) 1; do
        start $flavor-stopped-$who
        [ $who = all ] && kill -INT "${pids[@]}" || kill -INT "${pids[1]}"
        end "$flavor: SIGINT to $who"
        contains "$flavor: SIGINT to $who: state" "$(cat $flavor-stopped-$who/run.json)" '"state": "interrupted"'
        contains "$flavor: SIGINT to $who: how to go on" "$(cat start.err)" 'stopped after step .*--resume'
    done
    done_steps=$(number_of $flavor-stopped-1 steps)
    steps="train.steps=$((done_steps + 20))"
    check "$flavor: goes on" mpi 2 train $flavor-stopped-1 --resume $steps
    train cnn.yaml run.dir=$flavor-whole ${long/train.steps=1000000/$steps}
    same "$flavor: hash after going on" "$(hash_of $flavor-whole)" "$(hash_of $flavor-stopped-1)"

    # --- a frozen rank: the others say so
    start $flavor-frozen
    kill -STOP "${pids[1]}"
    end "$flavor: a frozen rank"
    contains "$flavor: a frozen rank: exit code" "$rc" '^(8|9)$'
    contains "$flavor: a frozen rank: what is said" "$(cat start.err)" '^leapgrad: .*rank 1 .*sign of life'
    # (Open MPI wakes it up to end it, and it finds the others gone.)
    [ $flavor = openmpi ] || same "$flavor: a frozen rank: said once" 1 "$(grep -c '^leapgrad: ' start.err)"
    check "$flavor: a frozen rank: the checkpoint is whole" "$leapgrad" eval $flavor-frozen

    # --- the frozen rank is the one that talks: the next one does, whichever has found it (of four, mostly not the next)
    if [ $flavor = mpich ]; then
        num_ranks=5 keys="${long/$ranks/ranks.replicas=5 plan.strategy=wfbp exec.device=reference}" start $flavor-frozen-0
        kill -STOP "${pids[0]}"
        end "$flavor: a frozen first rank"
        contains "$flavor: a frozen first rank: what is said" "$(cat start.err)" '^leapgrad: .*rank 0 has given no sign of life'
        same "$flavor: a frozen first rank: said once" 1 "$(grep -c '^leapgrad: ' start.err)"
    fi

    # --- a killed rank: all end; where the launcher leaves them the time, the others say so
    start $flavor-killed
    kill -KILL "${pids[1]}"
    end "$flavor: a killed rank"
    [ $rc != 0 ] || fail "$flavor: a killed rank: exit code 0"
    check "$flavor: a killed rank: the checkpoint is whole" "$leapgrad" eval $flavor-killed
    if [ $flavor = openmpi ]; then
        contains "$flavor: a killed rank: what is said" "$(cat start.err)" \
            '^leapgrad: rank 1 is gone: its process [0-9]+ has ended.*rank 0 was at step [0-9]+'
        contains "$flavor: a killed rank: state" "$(cat $flavor-killed/run.json)" '"state": "failed"'
    fi

    # --- the self-test
    if [ $flavor = mpich ]; then
        check "$flavor: selftest" mpi 2 selftest --pipeline=2
        contains "$flavor: selftest" "$(cat check.out)" 'cases, all with the bits of one process'
    fi
done

if [ $num_flavors = 0 ]; then
    echo "skipped: no MPI"
    exit 77
fi
finish
