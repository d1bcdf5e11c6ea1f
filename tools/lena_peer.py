#!/usr/bin/env python3
"""Rates by the published formulas, computed by PyTorch from its own gradients; writes tests/golden/rates/peer.csv.

A small network (8 - 6 - 4, ReLU) trains for 50 steps with 4 micro-batches of 4 samples, three times: LENA as its paper
has it, LENA as its authors' program has it (without the random branch), AdaScale. Everything is f64 but for the numbers that
go in, which are exact in f32. tests/integration/test_rates_torch.c trains the same network and compares.

Usage: tools/lena_peer.py [FILE]     (a Python with torch: tools/setup_torch.sh; ${LEAPGRAD_TORCH_VENV}/bin/python)
"""
import sys

import numpy as np
import torch

STEPS, N, SAMPLES, INPUTS, HIDDEN, CLASSES = 50, 4, 4, 8, 6, 4
ETA0, MOMENTUM, DECAY, D, ALPHA, EPS = 0.1, 0.9, 5e-4, 0.01, 0.05, 1e-6
SHAPES = [(HIDDEN, INPUTS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]


def start_values():
    params = []
    for p, shape in enumerate(SHAPES):
        i = np.arange(int(np.prod(shape)))
        values = ((i * 37 + p * 101) % 200 - 100).astype(np.float32) / np.float32(256)
        params.append(torch.tensor(values.astype(np.float64).reshape(shape), requires_grad=True))
    return params


def batch(step):
    i = np.arange(N * SAMPLES * INPUTS)
    x = ((i * 7919 + step * 104729 + 13) % 1000 - 500).astype(np.float32) / np.float32(256)
    x = x.astype(np.float64).reshape(-1, INPUTS)
    return torch.tensor(x), torch.tensor((x[:, 0] > 0) + 2 * (x[:, 1] > 0))


def gradients(params, step):
    """The mean gradient of each micro-batch: [micro-batch][parameter]."""
    x, y = batch(step)
    grads = []
    for i in range(N):
        part = slice(i * SAMPLES, (i + 1) * SAMPLES)
        hidden = torch.relu(x[part] @ params[0].T + params[1])
        loss = torch.nn.functional.cross_entropy(hidden @ params[2].T + params[3], y[part])
        grads.append(torch.autograd.grad(loss, params))
    return grads


class LenaPaper:
    """Equations 4 to 8 and algorithm 1; averages as AdaScale's appendix B.3, which the paper points to."""

    def __init__(self):
        self.man, self.mad, self.s = [0.0] * 4, [0.0] * 4, [0.0] * 4

    def rates(self, t, num, den, eta):
        theta, gains, lrs = ALPHA * STEPS * N, [], []
        keep = max(1 - N / 1000, 0)
        keep = min(keep, t / (t + 1))  # a plain mean first
        for k in range(4):
            self.man[k] = keep * self.man[k] + (1 - keep) * num[k]
            self.mad[k] = keep * self.mad[k] + (1 - keep) * den[k]
            gv = min(max((self.man[k] + EPS) / (self.mad[k] + EPS), 1.0), N)
            lr = gv * eta
            self.s[k] += gv
            if self.s[k] <= theta:
                lr *= self.s[k] / theta
            gains.append(gv)
            lrs.append(lr)
        return gains, lrs


class LenaCode:
    """What the released program computes, in its order."""

    def __init__(self):
        self.top, self.bot, self.progress = [0.0] * 4, [0.0] * 4, [0.0] * 4
        self.all_top, self.all_bot = 0.0, 0.0

    def rates(self, t, num, den, eta):
        rho, warmup, gains, lrs = N / 1000, ALPHA * STEPS * N, [], []
        self.all_top = rho * sum(num) + (1 - rho) * self.all_top
        self.all_bot = rho * sum(den) + (1 - rho) * self.all_bot
        grad_var = (self.all_top + EPS) / (self.all_bot + EPS)
        for k in range(4):
            self.top[k] = rho * num[k] + (1 - rho) * self.top[k]
            self.bot[k] = rho * den[k] + (1 - rho) * self.bot[k]
            scale = min((self.top[k] + EPS) / (self.bot[k] + EPS), N)
            lr = scale * eta
            if self.progress[k] < warmup:
                lr *= self.progress[k] / warmup
            self.progress[k] += grad_var if scale == N else scale
            gains.append(scale)
            lrs.append(lr)
        return gains, lrs


class AdaScale:
    """Algorithm 1 and appendix B.3, over the whole network; the schedule is read at the scale-invariant iteration."""

    def __init__(self):
        self.sigma2, self.mu2, self.tau = 0.0, 0.0, 0.0

    def rates(self, t, num, den, _):
        sigma2 = N / (N - 1) * (sum(num) - sum(den))
        mu2 = sum(den) - sigma2 / N
        keep = min(max(1 - N / 1000, 0), t / (t + 1))
        self.sigma2 = keep * self.sigma2 + (1 - keep) * max(sigma2, 1e-6)
        self.mu2 = keep * self.mu2 + (1 - keep) * max(mu2, 0.0)
        r = (self.sigma2 + self.mu2) / (self.sigma2 / N + self.mu2)
        lr = r * ETA0 * D ** (int(self.tau) / (STEPS * N))
        self.tau += r
        return [r] * 4, [lr] * 4


def train(rule):
    params = start_values()
    velocity = [torch.zeros_like(p) for p in params]
    for t in range(STEPS):
        grads = gradients(params, t)
        mean = [sum(g[k] for g in grads) / N for k in range(4)]
        num = [sum((g[k] ** 2).sum().item() for g in grads) / N for k in range(4)]
        den = [(mean[k] ** 2).sum().item() for k in range(4)]
        gains, lrs = rule.rates(t, num, den, ETA0 * D ** (t / STEPS))
        with torch.no_grad():
            for k, p in enumerate(params):
                velocity[k] = MOMENTUM * velocity[k] + mean[k] + DECAY * p
                p -= lrs[k] * velocity[k]
        yield gains, lrs


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/rates/peer.csv"
    with open(path, "w", encoding="ascii") as out:
        out.write("# rule,step,then gain and rate of each parameter; made by tools/lena_peer.py\n")
        for name, rule in (("paper", LenaPaper()), ("released-code", LenaCode()),
                           ("adascale", AdaScale())):
            for t, (gains, lrs) in enumerate(train(rule)):
                numbers = ",".join(f"{g:.9g},{lr:.9g}" for g, lr in zip(gains, lrs))
                out.write(f"{name},{t},{numbers}\n")


if __name__ == "__main__":
    main()
