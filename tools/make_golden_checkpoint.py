#!/usr/bin/env python3
"""Writes the golden checkpoint of tests/golden/checkpoint-v1 byte by byte, without any of leapgrad's code.

Needs only Python and libxxhash (for the checksums): tools/make_golden_checkpoint.py tests/golden/checkpoint-v1
What is in it is what docs/formats/checkpoint.md says; tests/unit/checkpoint/test_checkpoint_golden.c knows the values.
"""
import ctypes
import ctypes.util
import json
import pathlib
import struct
import sys

xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64
xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def checksum(data):
    return "%016x" % xxhash.XXH3_64bits(data, len(data))


def safetensors(tensors):
    """tensors: (name, dtype, shape, bytes). Returns the file and the checksum of each tensor."""
    header, data, sums = {"__metadata__": {"format": "pt"}}, b"", {}
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
        sums[name] = checksum(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data, sums


def main():
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    model = [
        ("bn1.num_batches", "I64", [], struct.pack("<q", 7)),
        ("conv1.weight", "F32", [2, 1, 2, 2], struct.pack("<8f", *[i / 4 - 1 for i in range(8)])),
        ("bn1.running_mean", "F32", [2], struct.pack("<2f", 0.5, -0.25)),
        ("empty", "F32", [0, 3], b""),
        ("mask", "U8", [3], bytes([1, 0, 255])),
    ]
    optimizer = [("conv1.weight.momentum", "F32", [2, 1, 2, 2], struct.pack("<8f", *[i * 0.5 for i in range(8)]))]
    files = {}
    for name, tensors in (("model.safetensors", model), ("optimizer.safetensors", optimizer)):
        raw, sums = safetensors(tensors)
        (directory / name).write_bytes(raw)
        files[name] = {"bytes": len(raw), "xxh3_64": checksum(raw), "tensors": sums}
    manifest = {
        "format": "leapgrad-checkpoint",
        "version": 1,
        "step": 500,
        "seed": 42,
        "weights_hash": "00112233445566778899aabbccddeeff",
        "recipe": {"model": {"name": "golden"}},
        "extra": {"epoch": 3},
        "files": files,
    }
    text = json.dumps(manifest, indent=1)
    body = (text[: text.rindex("}")].rstrip("\n") + ",").encode()
    (directory / "manifest.json").write_bytes(body + ('\n "checksum": "%s"\n}\n' % checksum(body)).encode())


if __name__ == "__main__":
    main()
