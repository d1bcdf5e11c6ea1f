"""The models and batches of bench/bench_model.c in PyTorch, with the same names of parameters, as lists of pieces that go one
after the other: a piece is a block of layers that no stage of a pipeline cuts.
"""
import json
import struct

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

DEFAULTS = {"layers": 6, "width": 384, "heads": 6, "context": None, "vocab": 512, "tied": 1, "size": 28, "channels": 64,
            "hidden": 512}
DEFAULT_CONTEXT = {"gpt": 256, "bert": 128}


class Group(nn.Module):
    """Submodules by name, so that parameters have the names they have elsewhere."""

    def __init__(self, /, **modules):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


class Piece(nn.Module):
    prefix = ""


def attend(qkv, heads, is_causal):
    n, t, c = qkv.shape
    q, k, v = (x.view(n, t, heads, c // 3 // heads).transpose(1, 2) for x in qkv.split(c // 3, dim=2))
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2).reshape(n, t, c // 3)


class GptEmbedding(Piece):
    prefix = "transformer."

    def __init__(self, o):
        super().__init__()
        self.wte = nn.Embedding(o["vocab"], o["width"])
        self.wpe = nn.Embedding(o["context"], o["width"])

    def forward(self, ids):
        return self.wte(ids) + self.wpe.weight[:ids.shape[1]]


class GptBlock(Piece):
    def __init__(self, o, idx):
        super().__init__()
        w = o["width"]
        self.prefix, self.heads = f"transformer.h.{idx}.", o["heads"]
        self.ln_1, self.ln_2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.attn = Group(c_attn=nn.Linear(w, 3 * w), c_proj=nn.Linear(w, w))
        self.mlp = Group(c_fc=nn.Linear(w, 4 * w), c_proj=nn.Linear(4 * w, w))

    def forward(self, x):
        x = x + self.attn.c_proj(attend(self.attn.c_attn(self.ln_1(x)), self.heads, True))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))


class GptHead(Piece):
    def __init__(self, o):
        super().__init__()
        self.transformer = Group(ln_f=nn.LayerNorm(o["width"]))
        self.lm_head = nn.Linear(o["width"], o["vocab"], bias=False)

    def forward(self, x):
        return self.lm_head(self.transformer.ln_f(x))


class BertEmbedding(Piece):
    prefix = "bert.embeddings."

    def __init__(self, o):
        super().__init__()
        self.word_embeddings = nn.Embedding(o["vocab"], o["width"])
        self.position_embeddings = nn.Embedding(o["context"], o["width"])
        self.LayerNorm = nn.LayerNorm(o["width"], eps=1e-12)

    def forward(self, ids):
        return self.LayerNorm(self.word_embeddings(ids) + self.position_embeddings.weight[:ids.shape[1]])


class BertBlock(Piece):
    def __init__(self, o, idx):
        super().__init__()
        w = o["width"]
        self.prefix, self.heads = f"bert.encoder.layer.{idx}.", o["heads"]
        self.attention = Group(self=Group(qkv=nn.Linear(w, 3 * w)), output=self.make_output(w, w))
        self.intermediate = Group(dense=nn.Linear(w, 4 * w))
        self.output = self.make_output(4 * w, w)

    @staticmethod
    def make_output(width_in, width):
        return Group(dense=nn.Linear(width_in, width), LayerNorm=nn.LayerNorm(width, eps=1e-12))

    def forward(self, x):
        y = attend(getattr(self.attention, "self").qkv(x), self.heads, False)
        x = self.attention.output.LayerNorm(self.attention.output.dense(y) + x)
        y = self.output.dense(F.gelu(self.intermediate.dense(x)))
        return self.output.LayerNorm(y + x)


class BertHead(Piece):
    prefix = "cls.predictions."

    def __init__(self, o):
        super().__init__()
        w = o["width"]
        self.transform = Group(dense=nn.Linear(w, w), LayerNorm=nn.LayerNorm(w, eps=1e-12))
        self.decoder = nn.Linear(w, o["vocab"])

    def forward(self, x):
        return self.decoder(self.transform.LayerNorm(F.gelu(self.transform.dense(x))))


class ResnetStem(Piece):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)

    def forward(self, x):
        return F.relu(self.bn1(self.conv1(x)), inplace=True)


class ResnetBlock(Piece):
    def __init__(self, stage, block, channels_in, channels):
        super().__init__()
        stride = 2 if stage > 1 and block == 0 else 1
        self.prefix = f"layer{stage}.{block}."
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                                            nn.BatchNorm2d(channels))

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(x)) + skip, inplace=True)


class ResnetHead(Piece):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(x.mean((2, 3)))


class Vgg11(Piece):
    """With batch norm, without dropout."""

    def __init__(self, o):
        super().__init__()
        self.features = nn.Sequential()
        channels_in, size, next_idx = 1, o["size"], 0

        def add(module):
            nonlocal next_idx
            self.features.add_module(str(next_idx), module)
            next_idx += 1

        for num, multiple in zip((1, 1, 2, 2, 2), (1, 2, 4, 8, 8)):
            for _ in range(num):
                add(nn.Conv2d(channels_in, o["channels"] * multiple, 3, 1, 1))
                add(nn.BatchNorm2d(o["channels"] * multiple))
                add(nn.ReLU(inplace=True))
                channels_in = o["channels"] * multiple
            if size > 1:
                add(nn.MaxPool2d(2))
                size //= 2
            else:
                next_idx += 1
        self.classifier = nn.Sequential()
        for name, module in (("0", nn.Linear(channels_in * size * size, o["hidden"])), ("1", nn.ReLU(inplace=True)),
                             ("3", nn.Linear(o["hidden"], o["hidden"])), ("4", nn.ReLU(inplace=True)),
                             ("6", nn.Linear(o["hidden"], 10))):
            self.classifier.add_module(name, module)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def make_pieces(model, options):
    """Embeddings belong to the first block and the head to the last one, so blocks are what stages are made of."""
    if model == "gpt":
        return [GptEmbedding(options), *(GptBlock(options, i) for i in range(options["layers"])), GptHead(options)]
    if model == "bert":
        return [BertEmbedding(options), *(BertBlock(options, i) for i in range(options["layers"])), BertHead(options)]
    if model == "resnet20":
        pieces, channels_in = [ResnetStem()], 16
        for stage, channels in enumerate((16, 32, 64), 1):
            for block in range(3):
                pieces.append(ResnetBlock(stage, block, channels_in, channels))
                channels_in = channels
        return [*pieces, ResnetHead()]
    if model == "vgg":
        return [Vgg11(options)]
    raise SystemExit(f"torch_models: no model '{model}'")


def tie(model, pieces, options):
    if model in ("gpt", "bert") and options["tied"]:
        head = pieces[-1].lm_head if model == "gpt" else pieces[-1].decoder
        head.weight = pieces[0].wte.weight if model == "gpt" else pieces[0].word_embeddings.weight


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {name: torch.from_numpy(np.frombuffer(data[slice(*info["data_offsets"])], np.float32).reshape(info["shape"]).copy())
            for name, info in header.items() if name != "__metadata__"}


def load(pieces, path):
    tensors = read_safetensors(path)
    unused = set(tensors)
    with torch.no_grad():
        for piece in pieces:
            for name, own in [*piece.named_parameters(), *piece.named_buffers()]:
                if "num_batches_tracked" in name:
                    continue
                if piece.prefix + name in tensors:
                    own.copy_(tensors[piece.prefix + name])
                    unused.discard(piece.prefix + name)
                elif not name.endswith(("lm_head.weight", "decoder.weight")):  # tied, set with the embedding
                    raise SystemExit(f"torch_models: {path} lacks '{piece.prefix + name}'")
    if unused:
        raise SystemExit(f"torch_models: {path} has '{min(unused)}', which the model lacks")


def lcg(start, num):
    """Numbers of bench_model.c's generator: num steps of s = 1664525 s + 1013904223 mod 2^32."""
    states = np.empty(num, np.uint32)
    with np.errstate(over="ignore"):
        factor, add = np.uint32(1664525), np.uint32(1013904223)
        states[:1] = np.uint32(start) * factor + add
        done = 1
        while done < num:  # `factor` and `add` are now those of `done` steps
            count = min(done, num - done)
            states[done:done + count] = states[:count] * factor + add
            add = add * factor + add
            factor = factor * factor
            done += count
    return states


def make_tensor(input_idx, shape, is_real):
    states = lcg(12345 + 7919 * input_idx, int(np.prod(shape)))
    if is_real:
        return torch.from_numpy(((states >> 8).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)).reshape(shape))
    return torch.from_numpy(((states >> 16) % 10).astype(np.int64).reshape(shape))


def make_batch(model, options, num_samples):
    if model in ("gpt", "bert"):
        shape = (num_samples, options["context"])
        return make_tensor(0, shape, False), make_tensor(1, shape, False)
    return make_tensor(0, (num_samples, 1, options["size"], options["size"]), True), make_tensor(1, (num_samples,), False)


def loss_fn(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def parse_options(model, items):
    """key=value words; what is no option of the model is returned beside them."""
    options, rest = dict(DEFAULTS), {}
    options["context"] = DEFAULT_CONTEXT.get(model, 0)
    for item in items:
        key, value = item.split("=", 1)
        if key in options:
            options[key] = int(value)
        else:
            rest[key] = value
    return options, rest
