# Shared by the tests of the program: a folder of their own, small data, and words to say what must be.
# Usage: . cli_fixture.sh PROGRAM
set -uo pipefail
leapgrad=$(realpath "$1")
work=$(mktemp -d "${TMPDIR:-/tmp}/leapgrad-cli.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
num_checks=0
num_failed=0

fail() { # what
    num_failed=$((num_failed + 1))
    echo "FAILED: $1" >&2
}

check() { # what, command...: the command must succeed
    local what=$1
    shift
    num_checks=$((num_checks + 1))
    "$@" >check.out 2>check.err || {
        fail "$what (status $?): $*"
        tail -n 5 check.out check.err >&2
    }
}

same() { # what, expected, got: equal, and not empty
    num_checks=$((num_checks + 1))
    [ -n "$2" ] && [ "$2" = "$3" ] || fail "$1: expected '$2', got '$3'"
}

contains() { # what, text, extended regular expression
    num_checks=$((num_checks + 1))
    grep -Eq -- "$3" <<<"$2" || fail "$1: no match of '$3' in: $(head -c 600 <<<"$2")"
}

refused() { # what, exit code, regular expression, argument...: the program says one line on stderr and exits with the code
    local what=$1 code=$2 pattern=$3 rc=0
    shift 3
    num_checks=$((num_checks + 1))
    "$leapgrad" "$@" >refused.out 2>refused.err || rc=$?
    [ "$rc" = "$code" ] || fail "$what: exit code $rc, expected $code; $(head -c 400 refused.err)"
    [ "$(wc -l <refused.err)" = 1 ] || fail "$what: stderr is not one line: $(head -c 400 refused.err)"
    grep -Eq -- "^leapgrad: .*($pattern)" refused.err || fail "$what: no match of '$pattern' in: $(head -c 400 refused.err)"
}

absent() { # what, path
    num_checks=$((num_checks + 1))
    [ ! -e "$2" ] || fail "$1: '$2' exists"
}

train() { # recipe, argument...: trains without a word; for what follows, not to be tested itself
    "$leapgrad" train "$@" >train.out 2>train.err || {
        fail "train $*: status $?"
        tail -n 3 train.out train.err >&2
    }
}

hash_of() { # run directory
    sed -n 's/^  "weights_hash": "\([0-9a-f]*\)",*$/\1/p' "$1/run.json"
}

number_of() { # run directory, key
    sed -n "s/^  \"$2\": \([-+0-9.eE]*\),*\$/\1/p" "$1/run.json"
}

finish() {
    echo "$num_checks checks, $num_failed failed"
    [ "$num_failed" = 0 ] && [ "$num_checks" -gt 0 ]
    exit
}

# Images of 8x8 with 4 classes: a bright quarter on noise. Text: words by a small generator. Both the same every time.
make_images() { # name, number of images, seed
    perl -e '
        my ($name, $num, $seed) = @ARGV;
        sub draw { $seed = ($seed * 1103515245 + 12345) % 2147483648; return int($seed / 65536) }
        my ($images, $labels) = ("", "");
        for (1 .. $num) {
            my $class = draw() % 4;
            $labels .= chr($class);
            for my $pixel (0 .. 63) {
                my $quarter = int($pixel % 8 / 4) + 2 * int($pixel / 32);
                $images .= chr(draw() % 100 + ($quarter == $class ? 120 : 0));
            }
        }
        sub put { open(my $out, ">:raw", $_[0]) or die; print $out $_[1]; close $out }
        put("$name-images", pack("N4", 0x803, $num, 8, 8) . $images);
        put("$name-labels", pack("N2", 0x801, $num) . $labels);' "$1" "$2" "$3"
}

make_text() { # file, number of words
    perl -e '
        my ($num, $seed) = (@ARGV, 7);
        my @words = qw(in the beginning was a word and it said let there be light upon earth);
        for (1 .. $num) {
            $seed = ($seed * 1103515245 + 12345) % 2147483648;
            print $words[int($seed / 65536) % @words], $_ % 12 ? " " : ".\n";
        }' "$2" >"$1"
}

make_images train 200 1
make_images test 50 2
make_text text.txt 3000

# Batch norm and dropout; 200 samples in batches of 16: the last one of an epoch has 8.
cat >cnn.yaml <<'YAML'
run: {name: tiny-cnn}
data:
  kind: idx
  train_images: train-images
  train_labels: train-labels
  test_images: test-images
  test_labels: test-labels
  num_classes: 4
  mean: [0.3]
  std: [0.25]
  pad_crop: 1
  flip: true
model: {kind: densenet, depth: 10, growth: 4, dropout: 0.2}
train: {steps: 20, batch: 16, eval_every: 10, log_every: 5}
optim: {lr: 0.05, weight_decay: 1e-4}
plan: {costs: estimate}
exec: {threads: 1}
YAML
cat >gpt.yaml <<'YAML'
run: {name: tiny-gpt}
data: {kind: text, text: text.txt, held_out_frac: 0.1}
model: {kind: gpt, layers: 2, width: 16, heads: 2, context: 16, tied: true, dropout: 0.1}
train: {steps: 20, batch: 7}
optim: {rule: adamw, lr: 0.01, clip_norm: 1, schedule: cosine, warmup_steps: 5}
plan: {costs: estimate}
exec: {threads: 1}
generate: {tokens: 40, prompt: "in the "}
YAML

devices=reference
"$leapgrad" doctor | grep -Eq '^(devices)? +cpu ' && devices="cpu reference"
