"""Training steps over two ranks, leapgrad's plans and PyTorch's schedules in turn on the same models, weights, batches and links:
medians of alternating rounds, predicted beside measured, what the plans gain and what the simulator says they can.

Usage: ranks.py STEP_RANKS TORCH_PYTHON [--quick] [--cases NAME,...] [--rounds N] [--steps N] [--mpi openmpi|mpich] [--out DIR]
See --list for the cases. Writes DIR/ranks.md and DIR/ranks.json (default build/bench-ranks), prints the former.

Links of 1 Gbit/s and 100 Mbit/s are made by netns_up.sh and removed at the end; without root their cases are left out, with a line.
Every rank has one core; so there must be as many cores as ranks, and nothing else should run.
"""
import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time

from ranks_report import CHUNK, SHARE, judge, summarize, write_case

HERE = os.path.dirname(os.path.abspath(__file__))
NETNS = os.environ.get("LEAPGRAD_NETNS", "lgbench")
RANKS = 2

BERT = "bert layers=24 width=256 heads=4 context=64 vocab=512 tied=0".split()
GPT = "gpt layers=24 width=256 heads=4 context=64 vocab=512 tied=0".split()
DEMO_GPT = "gpt layers=4 width=128 heads=4 context=128 vocab=256".split()
VGG = "vgg channels=32 hidden=256".split()
RESNET = ["resnet20"]
SAMPLES = 4  # of a micro-batch of the pipelines

PIPELINE_PLANS = ["gpipe", "1f1b", "fast-forward", "modulo:g=1", "modulo:g=2", "modulo:g=3", "zb-h1", "zb-v", "auto", "auto:v",
                  "auto:g=2"]
PIPELINE_TORCH = ["gpipe", "1f1b", "interleaved", "interleaved:stages=3", "interleaved-zb", "interleaved-zb:stages=3", "zb-v"]
REPLICA_PLANS = ["barrier", "wfbp", "wfbp" + CHUNK, "wfbp" + SHARE, "priority", "priority" + CHUNK, "priority" + SHARE, "reverse-first-k",
                 "reverse-first-k" + CHUNK, "reverse-first-k" + SHARE, "reverse-first-k" + CHUNK + ":statistics"]
REPLICA_TORCH = ["ddp", "ddp:buffers=0", "ddp:buffers=0:bucket=1"]


def curve_plans(ks):
    return ["wfbp" + CHUNK, "priority" + CHUNK, *(f"reverse-first-k{CHUNK}:k={k}" for k in ks), "reverse-first-k" + CHUNK]


# Where communication takes about as long as the backward pass: there an order has something to gain. Elsewhere it must not lose.
BALANCED = (("vgg", "1gbit"), ("resnet20", "100mbit"))
LEAST_GAIN = 1.10
NOISE = 0.02


def make_cases():
    cases = {}
    for name, model in (("bert", BERT), ("gpt", GPT)):
        for m in (2, 4, 8):
            for link in ("shm", "1gbit"):
                cases[f"pipeline-{name}-m{m}-{link}"] = {
                    "kind": "pipeline", "model": model, "link": link, "ours": PIPELINE_PLANS, "torch": PIPELINE_TORCH,
                    "args": ["pipeline=2", f"batch={SAMPLES * m}", f"micro_batches={m}"]}
    for name, model, batch in (("resnet20", RESNET, 192), ("vgg", VGG, 192), ("gpt", DEMO_GPT, 32)):
        for link in ("1gbit", "100mbit"):
            cases[f"replicas-{name}-{link}"] = {
                "kind": "replicas", "model": model, "link": link, "ours": REPLICA_PLANS, "torch": REPLICA_TORCH,
                "least_gain": LEAST_GAIN if (name, link) in BALANCED else 1 - NOISE,
                "args": ["replicas=2", f"batch={batch}"]}
    # k goes up to the number of layers with weights.
    for name, model, batch, link, ks in (("vgg", VGG, 192, "1gbit", range(12)),
                                         ("resnet20", RESNET, 192, "100mbit", (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20))):
        cases[f"curve-{name}-{link}"] = {"kind": "curve", "model": model, "link": link, "ours": curve_plans(ks), "torch": [],
                                         "args": ["replicas=2", f"batch={batch}"]}
    return cases


QUICK = ["pipeline-bert-m2-shm", "replicas-vgg-1gbit"]


# --- running --------------------------------------------------------------------------------------------------------------


def wait_all(processes, seconds):
    """The first process's output; everything is ended when one fails or takes too long."""
    end = time.monotonic() + seconds
    output, problem = "", None
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(1.0, end - time.monotonic()))
            output = output or out
            if process.returncode != 0:
                problem = problem or f"exit {process.returncode}: {err.strip()[-600:]}"
        except subprocess.TimeoutExpired:
            problem = problem or f"took longer than {seconds} s"
        if problem:
            break
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # a session of its own, see start()
            process.communicate()
    return output, problem


def start(command, env):
    return subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            start_new_session=True)


def read_lines(output, problem, what):
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if problem:
        print(f"bench-ranks: {what}: {problem}", file=sys.stderr)
    return rows


def run_ours(opts, case, plans, link):
    command = [opts.step_ranks, *case["model"], *case["args"], f"steps={opts.steps}", f"warmup={opts.warmup}",
               "plans=" + ",".join(plans)]
    if link != "shm":
        command = [os.path.join(HERE, "netns_mpirun.sh"), opts.mpi, str(RANKS), *command]
    return read_lines(*wait_all([start(command, {})], opts.timeout), "leapgrad")


def run_torch(opts, case, plans, link, weights):
    if not plans:
        return []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    is_local = link == "shm"
    processes = []
    for rank in range(RANKS):
        command = [opts.torch_python, os.path.join(HERE, "torch_ranks.py"), *case["model"], *case["args"], f"steps={opts.steps}",
                   f"warmup={opts.warmup}", f"weights={weights}", "plans=" + ",".join(plans)]
        command = ["taskset", "-c", str(rank), *command]
        if not is_local:
            command = ["ip", "netns", "exec", f"{NETNS}-{rank}", *command]
        processes.append(start(command, {
            "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1" if is_local else "10.77.0.1",
            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo" if is_local else "mpi0", "OMP_NUM_THREADS": "1"}))
    return read_lines(*wait_all(processes, opts.timeout), "PyTorch")


def save_weights(opts, case):
    path = os.path.join(opts.out, "-".join(case["model"]).replace("=", "") + ".safetensors")
    subprocess.run([opts.step_ranks, *case["model"], f"weights={path}"], check=True)
    return path


def run_case(opts, case):
    """{"ours": {plan: [row of each round]}, "torch": ...}"""
    results = {"ours": {}, "torch": {}}
    weights = save_weights(opts, case)
    for number in range(opts.rounds):
        turn = 1 if number % 2 == 0 else -1
        theirs = [] if opts.no_torch else case["torch"]
        rows = {"ours": run_ours(opts, case, case["ours"][::turn], case["link"]),
                "torch": run_torch(opts, case, theirs[::turn], case["link"], weights)}
        for who, found in rows.items():
            for row in found:
                results[who].setdefault(row["plan"], []).append(row)
    for who, order in (("ours", case["ours"]), ("torch", case["torch"])):
        results[who] = {plan: results[who][plan] for plan in order if plan in results[who]}
    return results


# --- main -----------------------------------------------------------------------------------------------------------------


def describe_machine():
    cpu = platform.processor()
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "load_average": os.getloadavg(), "time": time.strftime("%Y-%m-%d %H:%M")}


def parse_command_line(cases):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step_ranks")
    parser.add_argument("torch_python")
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(QUICK)}, one round of few steps")
    parser.add_argument("--cases", help="names, or beginnings of names, with commas between; default all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--mpi", choices=("openmpi", "mpich"), default="openmpi", help="ours, where the link is not shm")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for the plans of one case and round")
    parser.add_argument("--out", default="build/bench-ranks")
    parser.add_argument("--list", action="store_true")
    opts = parser.parse_args()
    if opts.list:
        print("\n".join(cases))
        sys.exit()
    if opts.quick:
        opts.cases, opts.rounds, opts.steps, opts.warmup = opts.cases or ",".join(QUICK), 1, 8, 2
    wanted = opts.cases.split(",") if opts.cases else list(cases)
    opts.cases = [name for name in cases if any(name.startswith(word) for word in wanted)]
    if not opts.cases:
        parser.error(f"no case begins with {wanted}; --list has them")
    return opts


def main():
    cases = make_cases()
    opts = parse_command_line(cases)
    os.makedirs(opts.out, exist_ok=True)
    record = {"machine": describe_machine(), "rounds": opts.rounds, "steps": opts.steps, "mpi": opts.mpi, "cases": {}}
    if record["machine"]["cores"] < RANKS:
        sys.exit(f"bench-ranks: {RANKS} ranks need {RANKS} cores; this machine lends {record['machine']['cores']}")
    lines = [f"{record['machine']['time']}, {record['machine']['cores']} cores of {record['machine']['cpu']}, one for each of {RANKS} "
             f"ranks; medians of {opts.rounds} alternating rounds of {opts.steps} steps.", ""]
    current_link = "shm"
    try:
        for name in sorted(opts.cases, key=lambda n: cases[n]["link"] != "shm"):  # links are made once per rate
            case = cases[name]
            if case["link"] not in ("shm", current_link):
                done = subprocess.run([os.path.join(HERE, "netns_up.sh"), str(RANKS), case["link"]], stderr=subprocess.PIPE, text=True)
                if done.returncode != 0:
                    print(f"bench-ranks: without {name}: {done.stderr.strip()}", file=sys.stderr)
                    continue
                current_link = case["link"]
            begin = time.monotonic()
            results = run_case(opts, case)
            summary = summarize(results)
            goals = judge(case["kind"], summary, case.get("least_gain", 0))
            record["cases"][name] = {**case, "results": summary, "goals": goals, "seconds": time.monotonic() - begin}
            text = write_case(name, case, summary, goals)
            print("\n".join(text), flush=True)
            lines += text
            with open(os.path.join(opts.out, "ranks.json"), "w") as file:
                json.dump(record, file, indent=1)
            with open(os.path.join(opts.out, "ranks.md"), "w") as file:
                file.write("\n".join(lines))
    finally:
        if current_link != "shm":
            subprocess.run([os.path.join(HERE, "netns_down.sh")], check=False)
    goals = [goal for case in record["cases"].values() for goal in case["goals"]]
    print(f"{sum(goal['ok'] for goal in goals)} of {len(goals)} goals; {opts.out}/ranks.md, {opts.out}/ranks.json")


if __name__ == "__main__":
    main()
