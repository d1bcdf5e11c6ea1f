#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets, tests/fuzz/corpus/<target>/: small valid and nearly valid inputs.

Usage: tools/make_fuzz_seeds.py

Each target's source says how its input is laid out. Seeds only help libFuzzer to get past the first checks; it finds the
rest by itself. Recipe and plan seeds are files of their own kind and are edited by hand.
"""

import gzip
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests/fuzz/corpus"


def save(target, name, data):
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def idx(magic, dims, data):
    return struct.pack(">I", magic) + b"".join(struct.pack(">I", dim) for dim in dims) + data


def idx_input(labels, images, options=0):
    return bytes([options]) + struct.pack(">H", len(labels)) + labels + images


def make_idx():
    labels = idx(0x801, [3], bytes([0, 1, 2]))
    images = idx(0x803, [3, 2, 2], bytes(range(12)))
    save("idx", "plain", idx_input(labels, images))
    save("idx", "options", idx_input(labels, images, 0x23))
    save("idx", "gzip", idx_input(gzip.compress(labels, mtime=0), gzip.compress(images, mtime=0)))
    save("idx", "two-gzip-members", idx_input(labels, gzip.compress(images[:10], mtime=0) + gzip.compress(images[10:], mtime=0)))
    save("idx", "short-images", idx_input(labels, images[:-1]))
    save("idx", "other-count", idx_input(idx(0x801, [4], bytes(4)), images))
    save("idx", "huge-dims", idx_input(labels, idx(0x803, [0xFFFFFFFF] * 3, b"")))
    save("idx", "wrong-magic", idx_input(idx(0x802, [3], bytes(3)), images))


def make_checkpoint():
    def header(data_bytes, text):
        return bytes([2 * data_bytes]) + text.encode()

    save("checkpoint", "empty", header(0, "{}"))
    save("checkpoint", "one", header(8, '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   '))
    save(
        "checkpoint",
        "two",
        header(
            12,
            '{"__metadata__":{"made":"by hand"},"a.weight":{"dtype":"F64","shape":[],"data_offsets":[0,8]},'
            '"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}}',
        ),
    )
    save("checkpoint", "no-elements", header(0, '{"w":{"dtype":"U8","shape":[0,3],"data_offsets":[0,0]}}'))
    save("checkpoint", "hole", header(8, '{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'))
    save("checkpoint", "huge", header(8, '{"w":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,8]}}'))
    manifest = ROOT / "tests/golden/checkpoint-v1/manifest.json"
    if manifest.exists():
        save("checkpoint", "manifest", b"\x01" + manifest.read_bytes())


if __name__ == "__main__":
    make_idx()
    make_checkpoint()
