#!/usr/bin/env python3
"""Makes the PyTorch fixtures of tests/golden/parity/, one safetensors file per model.

Usage: $(tools/setup_torch.sh | tail -n 1) tools/make_fixtures.py [--out tests/golden/parity]

Parameters and inputs are not stored: both sides compute them from an integer hash, in whole numbers and doubles, so they
are the same floats everywhere (tests/integration/parity_fill.h is the other side).

    hash(name, i)   splitmix64's finalizer of fnv1a64(name) + (i + 1) * 0x9E3779B97F4A7C15, mod 2^64
    unit(name, i)   (hash >> 40) / 2^23 - 1: in [-1, 1), exact in f32
    parameter       with two or more dimensions: unit * 2^-k, k the smallest with 4^k >= the product of all dimensions but
                    the first; with one: unit / 8 for a bias, 1 + unit / 4 for a weight
    images          unit("images", i)
    classes, ids    (hash >> 32) mod K

In steps after the first, i goes on counting where the step before ended.

A file holds, of plain SGD without momentum on a fresh batch per step:

    loss_curve                  [steps] f64: mean loss of the batch of each step, before its update
    grad/NAME                   after the first backward pass, tensors of up to 2048 elements
    grad_sample/NAME            of larger ones: 64 elements, number j is at hash("sample:" + NAME, j) mod elements
    grad_norm/NAME              [1] f64: 2-norm of each gradient
    grad_projection/NAME        [4] f64: sum of gradient * unit("projection<p>:" + NAME, i)
    state/NAME                  running statistics after the first step

Gradients are PyTorch's in f32. The script computes all of it in f64 too and prints how far the two are apart, which is
what the tolerances of the test rest on; the largest of these distances is in the file's metadata.
"""

import argparse
import json
import math
import pathlib
import struct

import numpy
import torch
import torch.nn.functional as F

MASK64 = (1 << 64) - 1
STEPS = 20
FULL_ELEMS = 2048
NUM_SAMPLES = 64
NUM_PROJECTIONS = 4
IGNORED = -100


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK64
    return value


def hashes(name, begin, count):
    """hash(name, i) for i in [begin, begin + count), u64."""
    i = numpy.arange(begin + 1, begin + count + 1, dtype=numpy.uint64)
    z = numpy.uint64(fnv1a64(name)) + i * numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def units(name, begin, count):
    return (hashes(name, begin, count) >> numpy.uint64(40)).astype(numpy.float64) / 2.0**23 - 1.0


def below(name, begin, count, bound):
    return ((hashes(name, begin, count) >> numpy.uint64(32)) % numpy.uint64(bound)).astype(numpy.int64)


def parameter(name, shape):
    value = units(name, 0, math.prod(shape))
    if len(shape) >= 2:
        fan_in = math.prod(shape[1:])
        k = 0
        while 4**k < fan_in:
            k += 1
        value *= 2.0**-k
    elif name.endswith(".bias"):
        value /= 8.0
    else:
        value = 1.0 + value / 4.0
    return value.astype(numpy.float32).reshape(shape)


class Net:
    """Parameters and running statistics by leapgrad's names, made when they are first asked for."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.params = {}
        self.states = {}
        self.new_states = {}

    def param(self, name, *shape):
        if name not in self.params:
            value = torch.from_numpy(parameter(name, shape)).to(self.dtype)
            self.params[name] = value.requires_grad_()
        assert tuple(self.params[name].shape) == shape, name
        return self.params[name]

    def conv(self, name, x, outputs, kernel, stride=1):
        weight = self.param(name + ".weight", outputs, x.shape[1], kernel, kernel)
        return F.conv2d(x, weight, None, stride, kernel // 2)

    def linear(self, name, x, outputs):
        weight = self.param(name + ".weight", outputs, x.shape[-1])
        return F.linear(x, weight, self.param(name + ".bias", outputs))

    def batch_norm(self, name, x):
        channels = x.shape[1]
        mean = self.states.setdefault(name + ".running_mean", torch.zeros(channels, dtype=self.dtype))
        var = self.states.setdefault(name + ".running_var", torch.ones(channels, dtype=self.dtype))
        weight = self.param(name + ".weight", channels)
        bias = self.param(name + ".bias", channels)
        return F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5)

    def layer_norm(self, name, x):
        width = x.shape[-1]
        weight = self.param(name + ".weight", width)
        return F.layer_norm(x, (width,), weight, self.param(name + ".bias", width), 1e-5)

    def embedding(self, name, ids, num, width):
        return F.embedding(ids, self.param(name + ".weight", num, width))

    def attention(self, packed, heads, causal, keep=None):
        batch, tokens, width = packed.shape
        q, k, v = (t.view(batch, tokens, heads, -1).transpose(1, 2) for t in packed.split(width // 3, 2))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1) > 0, -math.inf)
        if keep is not None:
            scores = scores.masked_fill(keep[:, None, None, :] == 0, -math.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, -1)
