"""Times training steps of the models of bench/step.c in PyTorch on the CPU; prints one JSON line.

Usage: torch_step.py MODEL MODE [key=value ...]
  MODEL: resnet20, gpt
  MODE: eager, channels-last (images only), compile
  keys: batch, steps, warmup, threads, layers, width, heads, context, vocab
"""
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                                            nn.BatchNorm2d(channels))

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + skip)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        layers, channels_in = [], 16
        for stage, channels in enumerate((16, 32, 64)):
            for block in range(3):
                layers.append(Block(channels_in, channels, 2 if stage > 0 and block == 0 else 1))
                channels_in = channels
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layers(F.relu(self.bn1(self.conv1(x)), inplace=True))
        return self.fc(x.mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_out = nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (y.view(n, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(n, t, c))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x)).flatten(0, 1)


def main():
    model_name, mode = sys.argv[1:3]
    opts = {"batch": 128 if model_name == "resnet20" else 8, "steps": 20, "warmup": 3, "threads": 2, "layers": 6,
            "width": 384, "heads": 6, "context": 256, "vocab": 512}
    for item in sys.argv[3:]:
        key, value = item.split("=")
        opts[key] = int(value)
    torch.manual_seed(0)
    torch.set_num_threads(opts["threads"])
    if model_name == "resnet20":
        model = ResNet20()
        x = torch.rand(opts["batch"], 1, 28, 28) * 2 - 1
        y = torch.randint(10, (opts["batch"],))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        if mode == "channels-last":
            model = model.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)
    else:
        model = Gpt(opts["layers"], opts["width"], opts["heads"], opts["context"], opts["vocab"])
        x = torch.randint(10, (opts["batch"], opts["context"]))
        y = torch.randint(10, (opts["batch"] * opts["context"],))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model.train()
    run = torch.compile(model) if mode == "compile" else model
    times = []
    for step in range(opts["warmup"] + opts["steps"]):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
        if step >= opts["warmup"]:
            times.append(1e3 * (time.perf_counter() - start))
    print(json.dumps({"model": model_name, "mode": mode, "batch": opts["batch"], "step_ms": statistics.median(times),
                      "best_ms": min(times), "loss": loss.item(), "torch": torch.__version__}))


main()
