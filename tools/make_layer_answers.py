#!/usr/bin/env python3
"""Writes tests/unit/device/layer_answers.inc.h: what PyTorch computes in f64 for small layers.

test_device_answers.c holds the same layers and fills their inputs by the same rule, pattern(): exact binary fractions,
so that no rounding stands between the two. Usage: make_layer_answers.py > tests/unit/device/layer_answers.inc.h
(needs torch; the file is committed, so the tests do not).
"""
import torch
import torch.nn.functional as F


def pattern(key, *shape):
    count = torch.Size(shape).numel()
    i = torch.arange(count, dtype=torch.float64)
    return ((torch.remainder(i * 7 + key * 3, 11) - 5) / 4).reshape(shape)


def targets(count, classes, ignored):
    ids = [(i * 5 + 1) % classes for i in range(count)]
    return torch.tensor([-100 if ignored and i % 4 == 3 else ids[i] for i in range(count)])


def emit(name, *tensors):
    numbers = torch.cat([t.detach().reshape(-1) for t in tensors])
    print(f"static const double answer_{name}[] = {{")
    for start in range(0, len(numbers), 5):
        print("    " + " ".join(f"{x:.17g}," for x in numbers[start:start + 5].tolist()))
    print("};")


def conv(name, x, outputs, groups, kernel, stride, pad, dilation):
    weight = pattern(20, outputs, x.shape[1] // groups, *kernel)
    top, left, bottom, right = pad
    x = F.pad(x, (left, right, top, bottom))
    emit(name, F.conv2d(x, weight, pattern(21, outputs), stride, 0, dilation, groups))


def attention(name, x, heads, causal, keep):
    n, tokens, packed = x.shape
    q, k, v = (t.reshape(n, tokens, heads, -1).transpose(1, 2) for t in x.split(packed // 3, dim=2))
    allowed = torch.ones(n, 1, tokens, tokens, dtype=torch.bool)
    if causal:
        allowed = allowed.tril()
    if keep is not None:
        allowed = allowed & keep.reshape(n, 1, 1, tokens)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    emit(name, y.transpose(1, 2).reshape(n, tokens, -1))


def loss(name, rows, classes, smoothing, weights, ignored, scale=0.25):
    x = pattern(0, rows, classes).requires_grad_()
    t = targets(rows, classes, ignored)
    weight = torch.tensor(weights, dtype=torch.float64) if weights else None
    total = F.cross_entropy(x, t, weight, reduction="sum", label_smoothing=smoothing)
    mean = F.cross_entropy(x, t, weight, reduction="mean", label_smoothing=smoothing)
    (total * scale).backward()
    emit(name, total, total / mean, x.grad)


print("/* Made by tools/make_layer_answers.py; part of test_device_answers.c. */")
print("/* clang-format off */")
conv("conv", pattern(0, 2, 4, 5, 6), 6, 2, (3, 2), (2, 1), (1, 0, 2, 1), (1, 2))
conv("depthwise", pattern(0, 1, 3, 4, 4), 3, 3, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1))
emit("linear", F.linear(pattern(0, 2, 3, 5), pattern(20, 4, 5), pattern(21, 4)))
mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
y = F.batch_norm(pattern(0, 2, 3, 2, 3), mean, var, pattern(20, 3), pattern(21, 3), True, 0.25, 0.125)
emit("batch_norm", y, mean, var)
emit("batch_norm_relu", F.relu(y))
y = F.batch_norm(pattern(0, 2, 3, 2, 3), pattern(40, 3), pattern(41, 3).abs() + 0.5, pattern(20, 3),
                 pattern(21, 3), False, 0.25, 0.125)
emit("batch_norm_eval", y)
emit("layer_norm", F.layer_norm(pattern(0, 2, 3, 5), (5,), pattern(20, 5), pattern(21, 5), 0.125))
for function in (F.relu, F.relu6, F.hardswish, F.hardsigmoid, F.gelu):
    emit(function.__name__, function(pattern(0, 1, 11) * 6))
emit("gelu_tanh", F.gelu(pattern(0, 1, 11) * 6, approximate="tanh"))
emit("max_pool", F.max_pool2d(pattern(0, 1, 2, 5, 6), 3, 2, 1))
emit("avg_pool", F.avg_pool2d(pattern(0, 1, 2, 5, 6), 3, 2, 1, count_include_pad=False))
attention("attention_full", pattern(0, 1, 4, 12), 2, False, None)
attention("attention_causal", pattern(0, 2, 3, 12), 2, True, None)
attention("attention_masked", pattern(0, 1, 4, 12), 2, False, torch.tensor([[True, False, True, True]]))
weights = [1.0, 0.25, 3.0, 0.5, 1.5]
loss("loss", 4, 5, 0.0, None, False)
loss("loss_ignored", 8, 5, 0.0, None, True)
loss("loss_weighted", 4, 5, 0.0, weights, False)
loss("loss_smoothed", 4, 5, 0.125, None, False)
loss("loss_all", 8, 5, 0.125, weights, True)
print("/* clang-format on */")
