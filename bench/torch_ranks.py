"""Times training steps of bench/step_ranks.c's models over several ranks in PyTorch, on gloo; one process per rank, as torchrun
or bench/ranks.py starts them (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME). Rank 0 prints a JSON line per plan.

Usage: torch_ranks.py MODEL plans=PLAN,PLAN,... weights=FILE [key=value ...]
  PLAN: a schedule of torch.distributed.pipelining: gpipe, 1f1b, interleaved, interleaved-zb, zb-v; stages=2 of a rank (loops)
        or ddp: bucket=25 (MB), buffers=1 (batch norms' statistics go from rank 0 to all before each forward)
        either with compile: torch.compile with its defaults
  keys: pipeline, replicas, batch (over all replicas), micro_batches, steps, warmup, lr (in millionths), and those of torch_models.py

SGD with momentum 0.9, in its fused form. A step's time is the distance between the ends of successive steps on rank 0.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.nn.parallel import DistributedDataParallel

import torch_models

SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "breadth-first": pipelining.ScheduleLoopedBFS,
    "interleaved-zb": pipelining.ScheduleInterleavedZeroBubble,
    "zb-v": pipelining.ScheduleZBVZeroBubble,
}
SINGLE = ("gpipe", "1f1b")


def parse_plan(text):
    name, *words = text.split(":")
    options = {"stages": 1 if name in SINGLE else 2, "bucket": 0, "buffers": 1, "compile": 0}
    for word in words:
        key, _, value = word.partition("=")
        if key not in options:
            raise SystemExit(f"torch_ranks: a plan has no option '{key}'")
        options[key] = int(value or 1)
    return name, options


def split_stages(pieces, num_stages):
    """Equal numbers of blocks, the first stages get one more: as leapgrad's contiguous placement."""
    first, *blocks, last = pieces
    begin, stages = 0, []
    for s in range(num_stages):
        end = begin + len(blocks) // num_stages + (s < len(blocks) % num_stages)
        stages.append(blocks[begin:end])
        begin = end
    stages[0].insert(0, first)
    stages[-1].append(last)
    return [nn.Sequential(*stage) for stage in stages]


class Pipeline:
    def __init__(self, job, plan):
        name, options = parse_plan(plan)
        num_ranks = job.pipeline
        num_stages = num_ranks * options["stages"]
        modules = split_stages(job.make_pieces(), num_stages)
        if name == "zb-v":
            mine = [job.rank, num_stages - 1 - job.rank]
        else:
            mine = list(range(job.rank, num_stages, num_ranks))
        if options["compile"]:
            for s in mine:
                modules[s].compile()
        stages = [pipelining.PipelineStage(modules[s], s, num_stages, torch.device("cpu")) for s in mine]
        self.schedule = SCHEDULES[name](stages[0] if name in SINGLE else stages, job.micro_batches, loss_fn=torch_models.loss_fn)
        self.last_rank = 0 if name == "zb-v" else num_ranks - 1
        self.job, self.has_first, self.has_last = job, 0 in mine, num_stages - 1 in mine
        self.optimizer = job.make_optimizer([p for s in mine for p in modules[s].parameters()])

    def step(self):
        losses = []
        self.optimizer.zero_grad(set_to_none=True)
        args = [self.job.x] if self.has_first else []
        if self.has_last:
            self.schedule.step(*args, target=self.job.y, losses=losses)
        else:
            self.schedule.step(*args)
        self.optimizer.step()
        return torch.stack([loss.detach() for loss in losses]).mean() if losses else torch.zeros(())

    def gather_losses(self, losses):
        dist.broadcast(losses, self.last_rank)
        return losses


class Ddp:
    def __init__(self, job, plan):
        _, options = parse_plan(plan)
        pieces = job.make_pieces()
        torch_models.tie(job.model, pieces, job.options)
        model = nn.Sequential(*pieces)
        if options["compile"]:
            model.compile()
        more = {"bucket_cap_mb": options["bucket"], "gradient_as_bucket_view": True} if options["bucket"] else {}
        self.model = DistributedDataParallel(model, broadcast_buffers=bool(options["buffers"]), **more)
        part = slice(job.rank * len(job.x) // job.world, (job.rank + 1) * len(job.x) // job.world)
        self.x, self.y = job.x[part], job.y[part]
        self.micro_batches = job.micro_batches
        self.optimizer = job.make_optimizer(self.model.parameters())

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        num, total = self.micro_batches, 0.0
        for i, (x, y) in enumerate(zip(self.x.chunk(num), self.y.chunk(num))):
            self.model.require_backward_grad_sync = i == num - 1
            loss = torch_models.loss_fn(self.model(x), y) / num
            loss.backward()
            total = total + loss.detach()
        self.optimizer.step()
        return total

    def gather_losses(self, losses):
        dist.all_reduce(losses)
        return losses / dist.get_world_size()


class Job:
    def __init__(self, model, items):
        self.model = model
        self.options, rest = torch_models.parse_options(model, items)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.pipeline = int(rest.pop("pipeline", 1))
        self.replicas = int(rest.pop("replicas", 1))
        self.batch = int(rest.pop("batch", 16))
        self.micro_batches = int(rest.pop("micro_batches", 1))
        self.steps = int(rest.pop("steps", 20))
        self.warmup = int(rest.pop("warmup", 3))
        self.lr = int(rest.pop("lr", 10000)) * 1e-6
        self.weights = rest.pop("weights", None)
        self.plans = rest.pop("plans", "").split(",")
        if rest:
            raise SystemExit(f"torch_ranks: unknown key '{min(rest)}'")
        if self.pipeline * self.replicas != self.world or min(self.pipeline, self.replicas) != 1:
            raise SystemExit(f"torch_ranks: pipeline={self.pipeline} or replicas={self.replicas} must be the {self.world} ranks")
        self.x, self.y = torch_models.make_batch(model, self.options, self.batch)

    def make_pieces(self):
        torch.manual_seed(0)
        pieces = torch_models.make_pieces(self.model, self.options)
        if self.weights is not None:
            torch_models.load(pieces, self.weights)
        return pieces

    def make_optimizer(self, params):
        return torch.optim.SGD(params, lr=self.lr, momentum=0.9, fused=True)

    def run(self, plan):
        runner = Ddp(self, plan) if plan.split(":")[0] == "ddp" else Pipeline(self, plan)
        times, losses = [], []
        dist.barrier()
        last = time.perf_counter()
        for step in range(self.warmup + self.steps):
            losses.append(runner.step())
            now = time.perf_counter()
            times.append(1e3 * (now - last))
            last = now
        times = times[self.warmup:]
        losses = runner.gather_losses(torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in losses]))
        return {"model": self.model, "plan": plan, "comm": "gloo", "replicas": self.replicas, "pipeline": self.pipeline,
                "batch": self.batch, "micro_batches": self.micro_batches, "step_ms": statistics.median(times),
                "mean_ms": statistics.mean(times), "best_ms": min(times), "losses": losses.tolist(),
                "torch": torch.__version__}


def main():
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo")
    job = Job(sys.argv[1], sys.argv[2:])
    for plan in job.plans:
        try:
            result = job.run(plan)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            result = {"model": job.model, "plan": plan, "comm": "gloo", "error": str(error).splitlines()[0][:300]}
            if "onnection" in str(error) or "imed out" in str(error):
                raise
        if job.rank == 0:
            print(json.dumps(result), flush=True)
        dist.barrier()
    dist.destroy_process_group()


main()
