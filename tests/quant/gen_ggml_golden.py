#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes golden blocks with ggml itself: the lines of tests/data/quant/quant_golden.jsonl from the
type Q4_1 on.

    pip install xllamacpp==2026.10.11549     # holds ggml, b11549
    tests/quant/gen_ggml_golden.py > lines

A block is random bytes with halves of usual size where the type has scales, or what ggml makes of
normal numbers; the floats are those of ggml's reference decoder (the bits, in hexadecimal).
"""
import ctypes
import json
import random
import struct
import sys
from pathlib import Path

import xllamacpp

# name, id, offsets of halves, offsets of byte scales
TYPES = [
    ("Q4_1", 3, (0, 2), ()),
    ("Q5_0", 6, (0,), ()),
    ("Q5_1", 7, (0, 2), ()),
    ("TQ1_0", 34, (52,), ()),
    ("TQ2_0", 35, (64,), ()),
    ("MXFP4", 39, (), (0,)),
    ("NVFP4", 40, (), (0, 1, 2, 3)),
    ("Q1_0", 41, (0,), ()),
    ("Q2_0", 42, (0,), ()),
]
# scales of a byte: the ends and the subnormal numbers of E8M0 and UE4M3
EDGES = [0, 1, 2, 127, 3, 4, 5, 6, 7, 8, 9, 126, 128, 129, 247, 254]


class Traits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("values", ctypes.c_int64),
                ("interleave", ctypes.c_int64), ("bytes", ctypes.c_size_t),
                ("quantized", ctypes.c_bool), ("to_float", ctypes.c_void_p),
                ("from_float", ctypes.c_void_p)]


def main():
    lib = next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))
    ggml = ctypes.PyDLL(str(lib))
    ggml.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
                                         ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
                                         ctypes.c_void_p]
    r = random.Random(11549)
    for name, number, halves, scales in TYPES:
        traits = ggml.ggml_get_type_traits(number).contents
        n, size = traits.values, traits.bytes
        assert traits.name.decode().upper() == name, (traits.name, name)
        to_float = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
            traits.to_float)
        for kind in range(4 + (len(EDGES) // len(scales) if scales else 0)):
            block = ctypes.create_string_buffer(size)
            if kind < 2:
                x = (ctypes.c_float * n)(*[r.gauss(0, 0.03 if kind else 2) for _ in range(n)])
                ggml.ggml_quantize_chunk(number, x, block, 0, 1, n, None)
            else:
                raw = bytearray(r.randbytes(size))
                for at in halves:
                    raw[at:at + 2] = struct.pack("<e", r.gauss(0, 0.02))
                for i, at in enumerate(scales):
                    raw[at] = (r.randrange(110, 130) if name == "MXFP4" else r.randrange(128)) \
                        if kind < 4 else EDGES[(kind - 4) * len(scales) + i]
                block.raw = bytes(raw)
            y = (ctypes.c_float * n)()
            to_float(block, y, n)
            print(json.dumps({
                "type": name, "ggml_id": number, "weights": n, "bytes": size,
                "block_hex": block.raw[:size].hex(),
                "f32_hex": "".join("%08x" % struct.unpack("<I", struct.pack("<f", v))
                                   for v in y)}, separators=(",", ":")))


if __name__ == "__main__":
    sys.exit(main())
