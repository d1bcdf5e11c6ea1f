#!/usr/bin/env python3
"""Makes the PyTorch fixtures of tests/golden/parity/, one safetensors file per model.

Usage: $(tools/setup_torch.sh | tail -n 1) tools/make_fixtures.py [--out tests/golden/parity]

Parameters and inputs are not stored: both sides compute them from an integer hash, in whole numbers and doubles, so they
are the same floats everywhere (tests/integration/parity_fill.h is the other side).

    hash(name, i)   splitmix64's finalizer of fnv1a64(name) + (i + 1) * 0x9E3779B97F4A7C15, mod 2^64
    unit(name, i)   (hash >> 40) / 2^23 - 1: in [-1, 1), exact in f32
    parameter       with two or more dimensions: unit * 2^-k, k the smallest with 4^k >= the product of all dimensions but
                    the first; with one: unit / 8 for a bias, 1 + unit / 4 for a weight
    images          unit("images57", i)
    classes, ids    (hash >> 32) mod K

There are two batches, which take turns; in the second one, i goes on counting where the first one ended.

A file holds, of plain SGD without momentum:

    loss_curve                  [steps] f64: mean loss of the batch of each step, before its update
    loss_curve_f32              [steps] f64: the same when PyTorch computes in f32
    grad/NAME                   after the first backward pass, tensors of up to 2048 elements
    grad_sample/NAME            of larger ones: 64 elements, number j is at hash("sample:" + NAME, j) mod elements
    grad_norm/NAME              [1] f64: 2-norm of each gradient
    grad_projection/NAME        [4] f64: sum of gradient * unit("projection<p>:" + NAME, i)
    state/NAME                  running statistics after the first step

All but loss_curve_f32 is PyTorch's in f64, rounded only where it is stored, so that an engine in f64 can be held against
it closely and one in f32 as closely as f32 allows. How far PyTorch's own f32 is from it is printed, and in the metadata.
Gradients of a network with ReLUs jump where an input passes zero. The images of the ResNet are chosen (by the number
behind "images") so that no such input is near zero in the first step, and the script checks that; over the 20 steps
nothing can prevent it, and from there on curves in f32 go apart.
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
BATCHES = 2
FULL_ELEMS = 2048
NUM_SAMPLES = 64
NUM_PROJECTIONS = 4
IGNORED = -100
# Settings of the engine that are floats.
EPSILON = float(numpy.float32(1e-5))
MOMENTUM = float(numpy.float32(0.1))
# f32 errors of activations here are some 1e-6.
MIN_RELU_MARGIN = 5e-6
MAX_F32_GRAD_DISTANCE = 1e-4


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
        self.relu_margin = math.inf

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
        return F.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPSILON)

    def layer_norm(self, name, x, epsilon=EPSILON):
        width = x.shape[-1]
        weight = self.param(name + ".weight", width)
        return F.layer_norm(x, (width,), weight, self.param(name + ".bias", width), epsilon)

    def relu(self, x):
        self.relu_margin = min(self.relu_margin, x.detach().abs().min().item())
        return F.relu(x)

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


class ResNet20:
    """CIFAR-style ResNet of depth 20 on 28 x 28 x 1 (He et al. 2016, section 4.2)."""

    name = "resnet20"
    batch = 4
    lr = 0.001

    def loss(self, net, batch_idx):
        pixels = 28 * 28 * self.batch
        images = units("images57", batch_idx * pixels, pixels).astype(numpy.float32)
        x = torch.from_numpy(images).to(net.dtype).view(self.batch, 1, 28, 28)
        labels = torch.from_numpy(below("labels", batch_idx * self.batch, self.batch, 10))
        x = net.relu(net.batch_norm("bn1", net.conv("conv1", x, 16, 3)))
        for stage, width in enumerate((16, 32, 64)):
            for block in range(3):
                at = f"layer{stage + 1}.{block}"
                stride = 2 if stage > 0 and block == 0 else 1
                y = net.relu(net.batch_norm(at + ".bn1", net.conv(at + ".conv1", x, width, 3, stride)))
                y = net.batch_norm(at + ".bn2", net.conv(at + ".conv2", y, width, 3))
                if stride != 1:
                    x = net.conv(at + ".downsample.0", x, width, 1, stride)
                    x = net.batch_norm(at + ".downsample.1", x)
                x = net.relu(x + y)
        return F.cross_entropy(net.linear("fc", x.mean((2, 3)), 10), labels)


class Transformer:
    vocab = 256
    layers = 2
    heads = 4
    width = 64
    tokens = 32
    batch = 4

    def ids(self, name, batch_idx, bound=vocab):
        count = self.batch * self.tokens
        return torch.from_numpy(below(name, batch_idx * count, count, bound)).view(self.batch, self.tokens)

    def mlp(self, net, inner, outer, x, approximate):
        return net.linear(outer, F.gelu(net.linear(inner, x, 4 * self.width), approximate=approximate), self.width)


class Gpt(Transformer):
    """Pre-LN decoder on bytes, head tied to the token embedding (Radford et al. 2019)."""

    name = "gpt"
    lr = 0.5

    def loss(self, net, batch_idx):
        x = net.embedding("transformer.wte", self.ids("ids", batch_idx), self.vocab, self.width)
        x = x + net.param("transformer.wpe.weight", self.tokens, self.width)
        for layer in range(self.layers):
            at = f"transformer.h.{layer}."
            y = net.linear(at + "attn.c_attn", net.layer_norm(at + "ln_1", x), 3 * self.width)
            x = x + net.linear(at + "attn.c_proj", net.attention(y, self.heads, True), self.width)
            y = net.layer_norm(at + "ln_2", x)
            x = x + self.mlp(net, at + "mlp.c_fc", at + "mlp.c_proj", y, "tanh")
        logits = F.linear(net.layer_norm("transformer.ln_f", x), net.params["transformer.wte.weight"])
        return F.cross_entropy(logits.view(-1, self.vocab), self.ids("targets", batch_idx).view(-1))


class Bert(Transformer):
    """Post-LN encoder with a masked-language-model head (Devlin et al. 2019)."""

    name = "bert"
    lr = 0.2
    epsilon = float(numpy.float32(1e-12))

    def loss(self, net, batch_idx):
        # Sample b keeps its first tokens - 5 b tokens; one in seven of those is a target.
        keep = torch.arange(self.tokens)[None, :] < self.tokens - 5 * torch.arange(self.batch)[:, None]
        is_target = (self.ids("is_target", batch_idx, 7) == 0) & keep
        targets = torch.where(is_target, self.ids("targets", batch_idx), IGNORED)

        at = "bert.embeddings."
        x = net.embedding(at + "word_embeddings", self.ids("ids", batch_idx), self.vocab, self.width)
        x = x + net.param(at + "position_embeddings.weight", self.tokens, self.width)
        x = x + net.embedding(at + "token_type_embeddings", self.ids("segments", batch_idx, 2), 2, self.width)
        x = net.layer_norm(at + "LayerNorm", x, self.epsilon)
        for layer in range(self.layers):
            at = f"bert.encoder.layer.{layer}."
            y = net.linear(at + "attention.self.qkv", x, 3 * self.width)
            y = net.linear(at + "attention.output.dense", net.attention(y, self.heads, False, keep), self.width)
            x = net.layer_norm(at + "attention.output.LayerNorm", x + y, self.epsilon)
            y = self.mlp(net, at + "intermediate.dense", at + "output.dense", x, "none")
            x = net.layer_norm(at + "output.LayerNorm", x + y, self.epsilon)
        at = "cls.predictions."
        y = F.gelu(net.linear(at + "transform.dense", x, self.width))
        y = net.layer_norm(at + "transform.LayerNorm", y, self.epsilon)
        logits = F.linear(
            y, net.params["bert.embeddings.word_embeddings.weight"], net.param(at + "decoder.bias", self.vocab)
        )
        return F.cross_entropy(logits.view(-1, self.vocab), targets.view(-1), ignore_index=IGNORED)


def run(model, dtype):
    """The loss curve; gradients and states of the first step by name; distance of ReLU inputs from zero in it."""
    net = Net(dtype)
    curve = []
    for step in range(STEPS):
        loss = model.loss(net, step % BATCHES)
        for value in net.params.values():
            value.grad = None
        loss.backward()
        curve.append(loss.item())
        if step == 0:
            grads = {name: value.grad.double().numpy().copy() for name, value in net.params.items()}
            states = {name: value.double().numpy().copy() for name, value in net.states.items()}
            relu_margin = net.relu_margin
        with torch.no_grad():
            for value in net.params.values():
                value -= model.lr * value.grad
    return numpy.array(curve), grads, states, relu_margin


def distance(a, b):
    """Largest difference of two elements, relative to the root mean square of b."""
    return float(numpy.abs(a - b).max() / max(math.sqrt(float((b * b).mean())), 1e-30))


def fixture(model):
    curve, grads, states, relu_margin = run(model, torch.float64)
    curve_f32, grads_f32, _, _ = run(model, torch.float32)
    curve_distance = float(numpy.abs(curve_f32 / curve - 1).max())
    worst = max(grads, key=lambda name: distance(grads_f32[name], grads[name]))
    grad_distance = distance(grads_f32[worst], grads[worst])
    print(f"{model.name}: {len(grads)} parameters, {sum(g.size for g in grads.values())} elements")
    print(f"  loss {curve[0]:.6f} -> {curve[-1]:.6f}; f32 is within {curve_distance:.1e} of f64")
    print(f"  gradients: f32 is within {grad_distance:.1e} of their size ({worst}); ReLU inputs from {relu_margin:.1e}")
    assert relu_margin > MIN_RELU_MARGIN, "choose other images"
    assert grad_distance < MAX_F32_GRAD_DISTANCE

    tensors = {"loss_curve": curve, "loss_curve_f32": curve_f32}
    for name, grad in grads.items():
        flat = grad.reshape(-1)
        if flat.size <= FULL_ELEMS:
            tensors["grad/" + name] = grad.astype(numpy.float32)
        else:
            picks = [int(h) % flat.size for h in hashes("sample:" + name, 0, NUM_SAMPLES)]
            tensors["grad_sample/" + name] = flat[picks].astype(numpy.float32)
        tensors["grad_norm/" + name] = numpy.array([math.sqrt(float(flat @ flat))])
        tensors["grad_projection/" + name] = numpy.array(
            [float(flat @ units(f"projection{p}:{name}", 0, flat.size)) for p in range(NUM_PROJECTIONS)]
        )
    for name, state in states.items():
        tensors["state/" + name] = state.astype(numpy.float32)
    metadata = {
        "made_by": "tools/make_fixtures.py",
        "pytorch": torch.__version__,
        "lr": repr(model.lr),
        "f32_curve_distance": f"{curve_distance:.1e}",
        "f32_grad_distance": f"{grad_distance:.1e}",
    }
    return tensors, metadata


def save_safetensors(path, tensors, metadata):
    header = {"__metadata__": metadata}
    data = b""
    # f64 first, so that every tensor is aligned to its elements.
    for name, value in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        begin = len(data)
        data += numpy.ascontiguousarray(value).tobytes()
        header[name] = {
            "dtype": {4: "F32", 8: "F64"}[value.itemsize],
            "shape": list(value.shape),
            "data_offsets": [begin, len(data)],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    print(f"  {path}: {path.stat().st_size} bytes")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/golden/parity")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for model in (ResNet20(), Gpt(), Bert()):
        save_safetensors(out / f"{model.name}.safetensors", *fixture(model))


if __name__ == "__main__":
    main()
