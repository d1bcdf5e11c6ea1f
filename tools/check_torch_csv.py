#!/usr/bin/env python3
"""Schedules between leapgrad and PyTorch, in both directions, with PyTorch's own code.

  tools/check_torch_csv.py PROGRAM            check; exit 77 if PyTorch is not there
  tools/check_torch_csv.py --dump DIRECTORY   write the fixtures of tests/golden/schedules anew

leapgrad's plans, saved as CSV, must be accepted by the loader of _PipelineScheduleRuntime, which validates them, adds the
communication, and is then run on paper by PyTorch's simulator. What PyTorch's schedules dump must be accepted by leapgrad, and come
back as the same actions. PyTorch: of this Python, or of the virtual environment in LEAPGRAD_TORCH_VENV.
"""
import csv
import os
import subprocess
import sys
import tempfile

RANKS = 4
MICRO_BATCHES = 8

# name of the file, class, stages, formats
TORCH_SCHEDULES = [
    ("gpipe", "ScheduleGPipe", RANKS),
    ("1f1b", "ScheduleInterleaved1F1B", RANKS),
    ("single-1f1b", "Schedule1F1B", RANKS),
    ("interleaved-1f1b", "ScheduleInterleaved1F1B", 2 * RANKS),
    ("interleaved-zero-bubble", "ScheduleInterleavedZeroBubble", 2 * RANKS),
    ("zbv-zero-bubble", "ScheduleZBVZeroBubble", 2 * RANKS),
    ("dualpipe-v", "ScheduleDualPipeV", 2 * RANKS),
]

# What Schedule1F1B keeps as its order (it runs by another one) numbers the last rank's forwards from 1 up to 8, as of PyTorch
# 2.15: PyTorch's own validation refuses it, and so must leapgrad.
BROKEN = ["single-1f1b.csv"]

LEAPGRAD_STRATEGIES = [
    "gpipe", "1f1b", "interleaved", "breadth-first", "fast-forward", "modulo", "zb-h1", "zb-h2", "zb-v", "dualpipe-v",
    "1f1b+priority", "zb-h1+reverse-first-k",
]


def find_torch():
    """The schedules module, or None. Starts again under the environment's Python if there is one."""
    try:
        import torch.distributed.pipelining.schedules as schedules
        return schedules
    except ImportError:
        pass
    environment = os.environ.get("LEAPGRAD_TORCH_VENV", "")
    python = os.path.join(environment, "bin", "python")
    if environment and os.path.exists(python) and os.path.realpath(sys.prefix) != os.path.realpath(environment):
        os.execv(python, [python] + sys.argv)
    return None


class Stage:
    """As much of a stage as schedules look at while they are made."""

    def __init__(self, index, rank, num_ranks, num_stages):
        self.stage_index = index
        self.group_rank = rank
        self.group_size = num_ranks
        self.num_stages = num_stages
        self.group = None
        self.has_backward = True
        self.is_first = index == 0
        self.is_last = index == num_stages - 1
        self.submod = None
        self.device = None


def stages_of_rank(num_ranks, num_stages, is_v):
    loops = num_stages // num_ranks
    if loops == 1:
        indices = [0]
    elif is_v:
        indices = [0, num_stages - 1]
    else:
        indices = [i * num_ranks for i in range(loops)]
    return [Stage(i, 0, num_ranks, num_stages) for i in indices]


def make_torch_schedule(schedules, name, num_stages):
    cls = getattr(schedules, name)
    is_v = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    stages = stages_of_rank(RANKS, num_stages, is_v)
    loss = lambda output, target: output  # noqa: E731
    if name in ("ScheduleGPipe", "Schedule1F1B"):
        return cls(stages[0], MICRO_BATCHES, loss_fn=loss)
    return cls(stages, MICRO_BATCHES, loss_fn=loss)


def dump(schedules, schedule, path, with_messages):
    if with_messages:
        schedule._dump_csv(path, format="compute_comms")
    elif isinstance(schedule, schedules._PipelineScheduleRuntime):
        schedule._dump_csv(path, format="compute_only")
    else:  # single-stage schedules have an order, but no method to write it
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            for rank in sorted(schedule.pipeline_order):
                writer.writerow(schedule.pipeline_order[rank])


def dump_all(schedules, directory):
    written = []
    for name, cls, num_stages in TORCH_SCHEDULES:
        schedule = make_torch_schedule(schedules, cls, num_stages)
        for with_messages in (False, True):
            if with_messages and not isinstance(schedule, schedules._PipelineScheduleRuntime):
                continue
            path = os.path.join(directory, name + ("-comms" if with_messages else "") + ".csv")
            dump(schedules, schedule, path, with_messages)
            written.append(path)
    return written


def computations(path):
    """Per line the actions that compute, pairs taken apart."""
    rows = []
    with open(path, newline="") as file:
        for row in csv.reader(file):
            cells = []
            for cell in row:
                if cell.startswith("("):
                    cells += cell[1:cell.index(")")].split(";")
                elif cell and cell.lstrip("0123456789")[0] in "FBIW" and "_" not in cell:
                    cells.append(cell)
            rows.append(cells)
    return rows


def joined(row):
    """I with its W right behind it is B."""
    out = []
    for cell in row:
        if out and "W" in cell and out[-1] == cell.replace("W", "I"):
            out[-1] = cell.replace("W", "B")
        else:
            out.append(cell)
    return out


def check_leapgrad_reads(program, path):
    with tempfile.TemporaryDirectory() as folder:
        back = os.path.join(folder, "back.csv")
        if os.path.basename(path) in BROKEN:
            refused = subprocess.run([program, "simulate", "--csv", path], capture_output=True, text=True)
            if refused.returncode != 2 or "'3F8'" not in refused.stderr:
                sys.exit(f"{path}: is not refused: {refused.stderr}")
            return
        subprocess.run([program, "simulate", "--csv", path, "--out", back], check=True, stdout=subprocess.DEVNULL)
        if [joined(r) for r in computations(path)] != [joined(r) for r in computations(back)]:
            sys.exit(f"{path}: comes back as another order")


def check_torch_reads(schedules, program, strategy):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.csv")
        command = [program, "plan", "--equal-times", f"ranks.pipeline={RANKS}", f"train.micro_batches={MICRO_BATCHES}",
                   f"plan.strategy={strategy}", "--out", path]
        if "+" in strategy:
            command.append("ranks.replicas=2")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        num_stages = 1 + max(int("".join(c for c in cell.split(k)[0])) for row in computations(path)
                             for cell in row for k in "FBIW" if k in cell)
        stages = stages_of_rank(RANKS, num_stages, strategy.split("+")[0] in ("zb-v", "dualpipe-v"))
        runtime = schedules._PipelineScheduleRuntime(stages, MICRO_BATCHES, loss_fn=lambda output, target: output)
        runtime._load_csv(path, format="compute_only")
        # PyTorch's simulator does not know what it adds for sharded parameters and for waiting.
        kinds = (schedules.F, schedules.B, schedules.I, schedules.W, schedules.SEND_F, schedules.RECV_F, schedules.SEND_B,
                 schedules.RECV_B)
        runtime.pipeline_order_with_comms = {
            rank: [a for a in actions if a.computation_type in kinds]
            for rank, actions in runtime.pipeline_order_with_comms.items()}
        runtime._simulate()
        loaded = [[str(a) for a in runtime.pipeline_order[rank] if a is not None] for rank in range(RANKS)]
        if loaded != computations(path):
            sys.exit(f"{strategy}: PyTorch reads another order")


def main():
    schedules = find_torch()
    if schedules is None:
        print("skipped: no PyTorch in this Python, nor in LEAPGRAD_TORCH_VENV")
        sys.exit(77)
    if len(sys.argv) == 3 and sys.argv[1] == "--dump":
        for path in dump_all(schedules, sys.argv[2]):
            print(path)
        return
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        dumped = dump_all(schedules, folder)
        for path in dumped:
            check_leapgrad_reads(program, path)
    for strategy in LEAPGRAD_STRATEGIES:
        check_torch_reads(schedules, program, strategy)
    print(f"{len(dumped)} schedules of PyTorch read, {len(LEAPGRAD_STRATEGIES)} of leapgrad accepted by PyTorch")


if __name__ == "__main__":
    main()
