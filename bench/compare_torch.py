"""Training steps of leapgrad and of PyTorch side by side on this machine: rounds that alternate, medians, ratios.

Usage: compare_torch.py STEP_PROGRAM TORCH_PYTHON [--rounds N] [--models resnet20,gpt] [--out FILE]
Prints a table and, last, one line per model with the ratio to PyTorch's best mode. PyTorch runs with OMP_WAIT_POLICY both
active and passive, because its own libraries fight over the cores in one of the two; its best counts.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

CASES = {
    "resnet20": {"torch": ["eager", "channels-last", "compile"], "leapgrad": ["in-order", "out-of-order"], "args": []},
    "gpt": {"torch": ["eager", "compile"], "leapgrad": ["in-order", "out-of-order"], "args": []},
}


def run(command, env):
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr[-2000:], file=sys.stderr)
        sys.exit(f"failed: {' '.join(command)}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("step_program")
    parser.add_argument("torch_python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="resnet20,gpt")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out")
    opts = parser.parse_args()
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_step.py")
    results = {}
    for model in opts.models.split(","):
        case = CASES[model]
        runs = {}
        for _ in range(opts.rounds):
            for strategy in case["leapgrad"]:
                command = [opts.step_program, model, f"strategy={strategy}", f"steps={opts.steps}", *case["args"]]
                runs.setdefault(("leapgrad", strategy), []).append(run(command, {}))
            for mode in case["torch"]:
                for policy in ("active", "passive"):
                    command = [opts.torch_python, script, model, mode, f"steps={opts.steps}", *case["args"]]
                    env = {"OMP_WAIT_POLICY": policy, "OMP_NUM_THREADS": "2"}
                    runs.setdefault(("torch", f"{mode}, {policy} wait"), []).append(run(command, env))
        table = {key: statistics.median(r["step_ms"] for r in rows) for key, rows in runs.items()}
        print(f"\n{model}: median step of {opts.rounds} alternating runs of {opts.steps} steps")
        for (who, what), ms in table.items():
            last = runs[(who, what)][-1]
            extra = ""
            if who == "leapgrad":
                extra = (f"  predicted {last['predicted_ms']:.1f}, idle {100 * last['idle_frac']:.1f} %, "
                         f"planning {last['planning_ms']:.1f} ms")
            print(f"  {who:9} {what:24} {ms:9.2f} ms{extra}")
        best_ours = min(ms for (who, _), ms in table.items() if who == "leapgrad")
        best_torch = min(ms for (who, _), ms in table.items() if who == "torch")
        results[model] = {"leapgrad_ms": best_ours, "torch_ms": best_torch, "ratio": best_torch / best_ours,
                          "all": {f"{who}: {what}": ms for (who, what), ms in table.items()}}
    print()
    for model, result in results.items():
        print(f"{model}: {result['ratio']:.2f}x PyTorch's best (leapgrad {result['leapgrad_ms']:.1f} ms, "
              f"PyTorch {result['torch_ms']:.1f} ms)")
    if opts.out:
        with open(opts.out, "w") as file:
            json.dump(results, file, indent=2)


main()
