#!/usr/bin/env python3
"""What `make bench-large-batch` runs: how far each rule for the learning rate carries when the batch grows.

Every method trains the network of bench/large_batch.yaml from the same weights, in the same order of samples, on the same split,
with a batch of S micro-batches of 32. Nothing is tuned to a method's favour but where the table below says so. A method
may take 1, 2 or 4 times the epochs of the single worker; the smallest of them with which it reaches that worker's accuracy
counts, and with 4 it has failed. Up to S = 32 the budgets are tried upward, above that downward from 4, as long as they do.

  target        final validation accuracy of the single worker of the same seed, less TOLERANCE (half a point)
  iterations    up to the first of 20 evaluations at or above the target
  test          accuracy on the 10,000 test images, read once, at the end of each run

One line of JSON per run goes to FOLDER/results.jsonl as soon as it is done; a run that is there is not run again, so that the
study can be stopped at any time. Then a table (Markdown) and pictures (SVG) are written there; with --write also to docs/lena.md,
docs/pictures and bench/large_batch_results.jsonl. --report runs nothing; without a FOLDER it shows what is in the repository.

Usage: bench/large_batch.py [--seeds 1,2,3] [--scales 8,32] [--methods a,b] [--jobs N] [--report] [--write] [--out FOLDER]
Needs only Python's standard library, build/leapgrad and Debian's dataset-fashion-mnist.
"""
import argparse
import concurrent.futures
import gzip
import json
import math
import os
import shutil
import statistics
import struct
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KEPT = os.path.join(ROOT, "bench", "large_batch_results.jsonl")
PAGE = os.path.join(ROOT, "docs", "lena.md")
MARKS = ("<!-- table: written by bench/large_batch.py --write -->\n", "<!-- end of table -->\n")
DATA = "/usr/share/datasets/fashion-mnist"
BASE_BATCH = 32
ITERATIONS = 5120  # of the single worker: 2.98 epochs
SCALES = [8, 32, 64, 128, 256]
BUDGETS = [1, 2, 4]
TOLERANCE = 0.005
UPWARD_SCALE = 32
NUM_EVALUATIONS = 20
WARMUP_FRAC = 0.055  # of the steps, for linear and square-root scaling and LARS
TUNING_SEED = 100
LARS_RATES = [10, 20, 30]

# name: (what it is called, what it does, whether it ends by itself)
METHODS = {
    "linear": ("linear", "S times the rate, 5.5 % warm-up"),
    "sqrt": ("square root", "root of S times the rate, 5.5 % warm-up"),
    "adascale": ("AdaScale, fixed", "AdaScale's gain, schedule by steps"),
    "adascale-full": ("AdaScale, full", "AdaScale as published: until 5,120 scale-invariant iterations are done"),
    "lars": ("LARS", "tuned for each S, 5.5 % warm-up"),
    "lena": ("LENA, paper", "gain per tensor, layer-wise warm-up of 5 % of the base iterations"),
    "ours": ("LENA, ours", "variant leapgrad, without a warm-up"),
}


def method_keys(method, steps, lars_rate):
    warmup = ["optim.warmup=linear", f"optim.warmup_steps={max(1, round(WARMUP_FRAC * steps))}"]
    return {
        "single": [],
        "linear": ["optim.scaling=linear", *warmup],
        "sqrt": ["optim.scaling=sqrt", *warmup],
        "adascale": ["optim.scaling=adascale"],
        "adascale-full": ["optim.scaling=adascale", "optim.schedule_by=iteration",
                          f"optim.total_iterations={ITERATIONS}"],
        "lars": ["optim.rule=lars", f"optim.lr={lars_rate}", *warmup],
        "lena": ["optim.scaling=lena", "optim.warmup=layerwise"],
        "ours": ["optim.scaling=lena", "optim.variant=leapgrad"],
    }[method]


# --- data ----------------------------------------------------------------------------------------------------------


def pool(source, target):
    """Averages 2 x 2 pixels of a gzipped IDX file."""
    if os.path.exists(target):
        return
    with gzip.open(source) as file:
        raw = file.read()
    num, height, width = struct.unpack(">III", raw[4:16])
    pixels, out = raw[16:], bytearray()
    for row in range(0, num * height, 2):
        a = pixels[row * width:(row + 1) * width]
        b = pixels[(row + 1) * width:(row + 2) * width]
        out += bytes([(p + q + r + s + 2) >> 2 for p, q, r, s in zip(a[::2], a[1::2], b[::2], b[1::2])])
    with open(target + ".part", "wb") as file:
        file.write(gzip.compress(raw[:4] + struct.pack(">III", num, height // 2, width // 2) + bytes(out), 1))
    os.replace(target + ".part", target)


# --- runs ----------------------------------------------------------------------------------------------------------


class Study:
    def __init__(self, folder, program, is_report):
        self.folder, self.program = folder, program
        self.tuning = threading.Lock()
        os.makedirs(folder, exist_ok=True)
        self.file = os.path.join(folder, "results.jsonl")
        self.runs = {}
        source = self.file if os.path.exists(self.file) or not is_report else KEPT
        if os.path.exists(source):
            with open(source) as file:
                for line in file:
                    if line.endswith("\n"):
                        self.keep(json.loads(line))

    def keep(self, run):
        self.runs[(run["method"], run["scale"], run["budget"], run["seed"])] = run

    def prepare(self):
        for part in "train", "t10k":
            pool(f"{DATA}/{part}-images-idx3-ubyte.gz", f"{self.folder}/{part}-14x14.gz")

    def run(self, method, scale, budget, seed, lars_rate=0):
        """The result of a run, from the file or from the program."""
        found = self.runs.get((method, scale, budget, seed))
        if found is not None:
            return found
        steps = round(ITERATIONS * budget / scale)
        name = f"{method}-S{scale}-x{budget}-seed{seed}"
        directory = os.path.join(self.folder, "runs", name)
        shutil.rmtree(directory, ignore_errors=True)
        kind = method.split(":")[0]
        keys = [f"run.dir={directory}", f"run.name={name}",
                f"data.train_images={self.folder}/train-14x14.gz", f"data.test_images={self.folder}/t10k-14x14.gz",
                f"train.steps={steps}", f"train.batch={BASE_BATCH * scale}", f"train.micro_batches={scale}",
                f"train.seed={seed}", f"train.eval_every={max(1, steps // NUM_EVALUATIONS)}",
                f"train.log_every={max(1, steps // 100)}", *method_keys(kind, steps, lars_rate)]
        start = time.monotonic()
        process = subprocess.Popen([self.program, "train", f"{ROOT}/bench/large_batch.yaml", "--quiet", *keys],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=dict(os.environ, OMP_NUM_THREADS="1"))
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        result = {"method": method, "scale": scale, "budget": budget, "seed": seed, "lars_rate": lars_rate,
                  "exit": process.returncode, "wall_s": round(time.monotonic() - start, 1),
                  "cpu_s": round(usage.ru_utime + usage.ru_stime, 1), **self.read_metrics(directory)}
        if process.returncode != 0:
            result["message"] = output.strip().splitlines()[-1][:200] if output.strip() else ""
            if "finite" not in result["message"]:
                raise SystemExit(f"{name}: {output[-1000:]}")
        with open(self.file, "a") as file:
            file.write(json.dumps(result) + "\n")
        self.keep(result)
        print(f"{name}: {result['steps']} steps, validation {final(result):.4f}, test {result['test']}, "
              f"{result['cpu_s']:.0f} s", flush=True)
        return result

    @staticmethod
    def read_metrics(directory):
        evals, test, steps = [], None, 0
        path = os.path.join(directory, "metrics.jsonl")
        if not os.path.exists(path):  # the program says why
            return {"steps": 0, "evals": [], "test": None}
        with open(path) as file:
            for line in file:
                row = json.loads(line)
                steps = max(steps, row["step"])
                if "validation_accuracy" in row:
                    evals.append([row["step"], round(row["validation_accuracy"], 5)])
                if "test_accuracy" in row:
                    test = row["test_accuracy"]
        return {"steps": steps, "evals": evals, "test": test}


def final(run):
    return run["evals"][-1][1] if run["evals"] else 0.0


def reached(run, target):
    """The first evaluation at or above the target; None: never."""
    return next((step for step, accuracy in run["evals"] if accuracy >= target), None)


def single_target(study, seed):
    return final(study.run("single", 1, 1, seed)) - TOLERANCE


def run_lars(study, scale, rate):
    """One rate of the grid, with a seed of its own."""
    return study.run(f"lars:{rate}", scale, tuning_budget(scale), TUNING_SEED, rate)


def tune_lars(study, scale):
    """The rate of the grid with the best final validation accuracy."""
    with study.tuning:
        runs = {rate: run_lars(study, scale, rate) for rate in LARS_RATES}
    return max(LARS_RATES, key=lambda rate: final(runs[rate]))


def tuning_budget(scale):
    return 1 if scale <= UPWARD_SCALE else 2


def chain(study, method, scale, seed):
    """Runs the budgets of one method: upward until one reaches the target, or downward until one does not."""
    target = single_target(study, seed)
    lars_rate = tune_lars(study, scale) if method == "lars" else 0
    if method == "adascale-full":
        study.run(method, scale, BUDGETS[-1], seed)
        return
    is_upward = scale <= UPWARD_SCALE
    for budget in BUDGETS if is_upward else reversed(BUDGETS):
        run = study.run(method, scale, budget, seed, lars_rate)
        if (reached(run, target) is not None) == is_upward:
            return


# --- report --------------------------------------------------------------------------------------------------------


def outcome(study, method, scale, seed):
    """The run that reached the target first, or else the one that came nearest; None: nothing was run."""
    if ("single", 1, 1, seed) not in study.runs:
        return None
    target = single_target(study, seed)
    runs = [run for (name, s, _, d), run in study.runs.items() if (name, s, d) == (method, scale, seed)]
    done = sorted((reached(run, target), run["budget"]) for run in runs if reached(run, target) is not None)
    if done:
        step, budget = done[0]
        return step, next(run for run in runs if run["budget"] == budget)
    return (None, max(runs, key=final)) if runs else None


def spread(values, form="{:.0f}"):
    if not values:
        return "–"
    if len(values) == 1:
        return form.format(values[0])
    return f"{form.format(statistics.median(values))} ({form.format(min(values))}–{form.format(max(values))})"


def rows(study, seeds, scales, methods):
    for scale in scales:
        for method in methods:
            outcomes = [o for o in (outcome(study, method, scale, seed) for seed in seeds) if o is not None]
            if outcomes:
                yield scale, method, outcomes


def markdown(study, seeds, scales, methods):
    singles = [study.runs[("single", 1, 1, seed)] for seed in seeds if ("single", 1, 1, seed) in study.runs]
    single_steps = [reached(run, single_target(study, run["seed"])) for run in singles]
    lines = [
        f"Single worker ({len(singles)} seeds): validation {spread([100 * final(r) for r in singles], '{:.2f}')} %, test "
        f"{spread([100 * r['test'] for r in singles], '{:.2f}')} %, target reached after "
        f"{spread([s for s in single_steps if s])} iterations, {spread([r['cpu_s'] for r in singles])} s of one core.", "",
        "| S | batch | method | reached | iterations | epochs | budget | test % | final validation % | CPU s |",
        "|---|---|---|---|---|---|---|---|---|---|"]
    for scale, method, outcomes in rows(study, seeds, scales, methods):
        good = [o for o in outcomes if o[0] is not None]
        runs = [run for _, run in outcomes]
        epochs = [step * scale * BASE_BATCH / 55000 for step, _ in good]
        tests = [100 * run["test"] for run in runs if run["test"] is not None]
        lines.append(
            f"| {scale} | {scale * BASE_BATCH} | {METHODS[method][0]} | {len(good)} of {len(outcomes)} | "
            f"{spread([step for step, _ in good])} | {spread(epochs, '{:.1f}')} | "
            f"{', '.join(sorted({str(run['budget']) for run in runs}))} | {spread(tests, '{:.2f}')} | "
            f"{spread([100 * final(run) for run in runs], '{:.2f}')} | {spread([run['cpu_s'] for run in runs])} |")
    tuned = {scale: tuned_rate(study, scale) for scale in scales}
    known = [f"{rate} at S = {scale}" for scale, rate in tuned.items() if rate]
    if known:
        lines += ["", f"LARS: of the rates {', '.join(map(str, LARS_RATES))} (trust coefficient 0.001) seed {TUNING_SEED} "
                      f"chose {', '.join(known)}."]
    return "\n".join(lines) + "\n"


def tuned_rate(study, scale):
    runs = {rate: study.runs.get((f"lars:{rate}", scale, tuning_budget(scale), TUNING_SEED)) for rate in LARS_RATES}
    return None if None in runs.values() else max(LARS_RATES, key=lambda rate: final(runs[rate]))


COLORS = {"linear": "#8a8f98", "sqrt": "#b08c3e", "adascale": "#2f7ed8", "adascale-full": "#1b4f8f", "lars": "#8a56c2",
          "lena": "#d9662b", "ours": "#1f9d55", "single": "#222222"}
INK, GRID = "#333", "#e3e5e8"


class Plot:
    """Axes with lines, in SVG; x and y are mapped by the functions given."""

    def __init__(self, title, x_label, y_label, x_range, y_range, log_x=False, log_y=False):
        self.size, self.box = (760, 400), (70, 40, 500, 310)
        self.log = (log_x, log_y)
        self.range = [[math.log(v) for v in r] if log else list(r) for r, log in zip((x_range, y_range), self.log)]
        self.out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.size[0]} {self.size[1]}" width="{self.size[0]}" '
            f'font-family="sans-serif" font-size="12" fill="{INK}"><rect width="100%" height="100%" fill="#fff"/>',
            f'<text x="{self.box[0]}" y="22" font-size="14" font-weight="600">{title}</text>',
            f'<text x="{self.box[0] + self.box[2] / 2}" y="{self.size[1] - 10}" text-anchor="middle">{x_label}</text>',
            f'<text transform="translate(16 {self.box[1] + self.box[3] / 2}) rotate(-90)" '
            f'text-anchor="middle">{y_label}</text>']
        self.legend_y = self.box[1] + 8

    def at(self, axis, value):
        low, high = self.range[axis]
        part = ((math.log(value) if self.log[axis] else value) - low) / (high - low)
        left, top, width, height = self.box
        return left + part * width if axis == 0 else top + (1 - part) * height

    def ticks(self, axis, values, form="{:g}"):
        left, top, width, height = self.box
        for value in values:
            p = self.at(axis, value)
            if axis == 0:
                self.out.append(f'<path d="M{p:.1f} {top}v{height}" stroke="{GRID}"/><text x="{p:.1f}" '
                                f'y="{top + height + 18}" text-anchor="middle">{form.format(value)}</text>')
            else:
                self.out.append(f'<path d="M{left} {p:.1f}h{width}" stroke="{GRID}"/><text x="{left - 8}" '
                                f'y="{p + 4:.1f}" text-anchor="end">{form.format(value)}</text>')

    def line(self, points, color, is_marked=True, width=2, dash=""):
        path = "M" + "L".join(f"{self.at(0, x):.1f} {self.at(1, y):.1f}" for x, y in points)
        self.out.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dash}"/>')
        if is_marked:
            self.out += [f'<circle cx="{self.at(0, x):.1f}" cy="{self.at(1, y):.1f}" r="3.5" fill="{color}"/>'
                         for x, y in points]

    def bar(self, x, low, high, color):
        self.out.append(f'<path d="M{self.at(0, x):.1f} {self.at(1, low):.1f}V{self.at(1, high):.1f}" stroke="{color}" '
                        f'stroke-width="1.5" opacity="0.6"/>')

    def legend(self, text, color, dash=""):
        x = self.box[0] + self.box[2] + 20
        self.out.append(f'<path d="M{x} {self.legend_y - 4}h22" stroke="{color}" stroke-width="2.5" '
                        f'stroke-dasharray="{dash}"/><text x="{x + 30}" y="{self.legend_y}">{text}</text>')
        self.legend_y += 22

    def save(self, path):
        with open(path, "w") as file:
            file.write("\n".join(self.out) + "\n</svg>\n")


def plot_iterations(study, seeds, scales, methods, path):
    points = {method: [] for method in methods}
    for scale, method, outcomes in rows(study, seeds, scales, methods):
        steps = [step for step, _ in outcomes if step is not None]
        if 2 * len(steps) > len(outcomes):
            points[method].append((scale, statistics.median(steps), min(steps), max(steps)))
    everything = [p for method in methods for p in points[method]]
    if not everything:
        return
    low, high = min(p[2] for p in everything) * 0.8, max(p[3] for p in everything) * 1.25
    plot = Plot("Iterations to the single worker's accuracy", "S (batch / 32)", "iterations",
                (scales[0] * 0.85, scales[-1] * 1.18), (low, high), True, True)
    plot.ticks(0, scales)
    plot.ticks(1, [v for v in (25, 50, 100, 200, 400, 800, 1600, 3200) if low <= v <= high])
    ideal = [(s, ITERATIONS / s) for s in scales if low <= ITERATIONS / s <= high]
    if len(ideal) > 1:
        plot.line(ideal, "#999", False, 1.5, "3 4")
    for i, method in enumerate(methods):
        if points[method]:
            plot.line([p[:2] for p in points[method]], COLORS[method])
            shift = 1 + 0.012 * (i - len(methods) / 2)
            for scale, _, least, most in points[method]:
                plot.bar(scale * shift, least, most, COLORS[method])
        plot.legend(METHODS[method][0] + ("" if points[method] else ": not reached"), COLORS[method])
    if len(ideal) > 1:
        plot.legend("S times fewer", "#999", "3 4")
    plot.save(path)


def plot_accuracy(study, seeds, scales, methods, path):
    """Test accuracy of the run that counts."""
    series = {}
    for scale, method, outcomes in rows(study, seeds, scales, methods):
        tests = [100 * run["test"] for _, run in outcomes if run["test"] is not None]
        if tests:
            series.setdefault(method, []).append((scale, statistics.median(tests), min(tests), max(tests)))
    singles = [100 * study.runs[("single", 1, 1, seed)]["test"] for seed in seeds if ("single", 1, 1, seed) in study.runs]
    if not series or not singles:
        return
    plot = Plot("Test accuracy (of the run that reached the target, or came nearest)", "S (batch / 32)", "test accuracy (%)",
                (scales[0] * 0.85, scales[-1] * 1.18), (70, 92), True, False)
    plot.ticks(0, scales)
    plot.ticks(1, range(70, 92, 5))
    plot.line([(scales[0], statistics.mean(singles)), (scales[-1], statistics.mean(singles))], COLORS["single"], False, 1.5,
              "5 4")
    for method in series:
        plot.line([(x, max(y, 70)) for x, y, _, _ in series[method]], COLORS[method])
        for x, _, low, high in series[method]:
            plot.bar(x, max(low, 70), max(high, 70), COLORS[method])
        plot.legend(METHODS[method][0], COLORS[method])
    plot.legend("single worker", COLORS["single"], "5 4")
    plot.save(path)


def plot_curves(study, seed, scale, budget, methods, path):
    runs = {m: study.runs[(m, scale, b, seed)] for m in methods
            for b in (BUDGETS[-1] if m == "adascale-full" else budget,) if (m, scale, b, seed) in study.runs}
    if len(runs) < 2:
        return
    steps = max(run["evals"][-1][0] for run in runs.values() if run["evals"])
    plot = Plot(f"Validation accuracy, S = {scale}, {budget} times the single worker's epochs", "iteration", "accuracy (%)",
                (0, steps), (60, 92))
    plot.ticks(0, [round(steps * i / 5) for i in range(6)])
    plot.ticks(1, range(60, 92, 5))
    target = 100 * single_target(study, seed)
    plot.line([(0, target), (steps, target)], COLORS["single"], False, 1.5, "5 4")
    for method, run in runs.items():
        points = [(s, 100 * a) for s, a in run["evals"] if a >= 0.6]
        if len(points) > 1:
            plot.line(points, COLORS[method], False, 1.8)
        plot.legend(METHODS[method][0], COLORS[method])
    plot.legend("target", COLORS["single"], "5 4")
    plot.save(path)


def save_rate_maps(report, picture):
    """The maps of gains and rates in a run's report, as a picture of their own."""
    with open(report) as file:
        page = file.read()
    start = page.find('<svg viewBox', page.find("Learning rates by parameter"))
    if start < 0:
        return
    svg = page[start:page.index("</svg>", start) + 6]
    for name, color in ("--s0", "#2f7fc1"), ("--ink", "#1d2129"):
        svg = svg.replace(f"var({name})", color)
    head = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" '
    with open(picture, "w") as file:
        file.write(head + svg[5:].replace(">", '><rect width="100%" height="100%" fill="#fff"/>', 1) + "\n")


def write_docs(study, folder, table):
    with open(PAGE) as file:
        before, _, rest = file.read().partition(MARKS[0])
    _, mark, after = rest.partition(MARKS[1])
    if not mark:
        raise SystemExit(f"{PAGE} lacks its two marks")
    with open(PAGE, "w") as file:
        file.write(before + MARKS[0] + "\n" + table + "\n" + MARKS[1] + after)
    for method in "lena", "ours":
        report = os.path.join(folder, "runs", f"{method}-S128-x4-seed2", "report.html")
        if os.path.exists(report):
            save_rate_maps(report, os.path.join(folder, f"large-batch-rates-{method}.svg"))
    for name in os.listdir(folder):
        if name.endswith(".svg"):
            shutil.copy(os.path.join(folder, name), os.path.join(ROOT, "docs", "pictures", name))
    with open(KEPT, "w") as file:
        for key in sorted(study.runs):
            file.write(json.dumps({name: value for name, value in study.runs[key].items() if name != "losses"}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3])
    parser.add_argument("--scales", type=numbers, default=SCALES)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--report", action="store_true", help="only write tables and pictures of what is there")
    parser.add_argument("--write", action="store_true", help="bring docs/ and bench/large_batch_results.jsonl up to date")
    parser.add_argument("--out", default=f"{ROOT}/build/large-batch")
    parser.add_argument("--program", default=f"{ROOT}/build/leapgrad")
    args = parser.parse_args()
    unknown = [method for method in args.methods if method not in METHODS]
    if unknown:
        parser.error(f"--methods: {unknown[0]} is none of {', '.join(METHODS)}")
    study = Study(args.out, args.program, args.report)
    if not args.report:
        study.prepare()
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool_of_threads:
            list(pool_of_threads.map(lambda seed: single_target(study, seed), args.seeds))
            chains = [pool_of_threads.submit(chain, study, method, scale, seed)
                      for scale in args.scales for seed in args.seeds for method in args.methods]
            for future in chains:
                future.result()
    seeds = [seed for seed in args.seeds if ("single", 1, 1, seed) in study.runs]
    table = markdown(study, seeds, args.scales, args.methods)
    with open(os.path.join(args.out, "table.md"), "w") as file:
        file.write(table)
    plot_iterations(study, seeds, args.scales, args.methods, os.path.join(args.out, "large-batch-iterations.svg"))
    plot_accuracy(study, seeds, args.scales, args.methods, os.path.join(args.out, "large-batch-accuracy.svg"))
    for scale in args.scales:
        plot_curves(study, seeds[0] if seeds else 1, scale, BUDGETS[-1], args.methods,
                    os.path.join(args.out, f"large-batch-curves-{scale}.svg"))
    print(table)
    if args.write:
        write_docs(study, args.out, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
