#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes src/quant/iq_grids.c from the codebooks in tests/data/quant/*.csv.

    tools/scripts/gen_iq_grids.py tests/data/quant > src/quant/iq_grids.c

Each CSV has a header line, then one line per row: its index, an optional column of packed hex (ignored), the values.
"""
import csv
import os
import sys

HEAD = """/* SPDX-License-Identifier: MIT */
/*
 * Codebooks of the IQ types. Written by tools/scripts/gen_iq_grids.py; do not edit.
 *
 * The numbers come from ggml (src/ggml-common.h):
 * Copyright (c) 2023-2026 The ggml authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
 * files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
 * modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
 * Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE,
 * ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */
#include "src/quant/iq_grids.h"

/* clang-format off */
"""


def rows(folder, name):
    with open(os.path.join(folder, name + ".csv")) as f:
        lines = list(csv.reader(f))[1:]
    out = [[int(v) for v in line[1:] if not v.startswith("0x")] for line in lines]
    assert [int(line[0]) for line in lines] == list(range(len(lines))), name
    return out


def pack(values, bits):
    """The first value in the lowest bits."""
    assert all(0 <= v < 1 << bits for v in values)
    return sum(v << bits * i for i, v in enumerate(values))


def emit(ctype, name, words, digits, per_line):
    print(f"\nconst {ctype} {name}[{len(words)}] = {{")
    for i in range(0, len(words), per_line):
        print("\t" + " ".join(f"0x{w:0{digits}x}," for w in words[i:i + per_line]))
    print("};")


def main():
    folder = sys.argv[1]
    print(HEAD, end="")
    for name, size in (("iq2xxs_grid", 256), ("iq2xs_grid", 512), ("iq2s_grid", 1024)):
        words = [pack(r, 8) for r in rows(folder, name)]
        assert len(words) == size
        emit("uint64_t", name, words, 16, 5)
    for name, size in (("iq3xxs_grid", 256), ("iq3s_grid", 512)):
        words = [pack(r, 8) for r in rows(folder, name)]
        assert len(words) == size
        emit("uint32_t", name, words, 8, 8)
    words = [pack([v + 1 for v in r], 2) for r in rows(folder, "iq1s_grid")]
    assert len(words) == 2048
    emit("uint16_t", "iq1s_grid", words, 4, 12)

    signs = [r[0] for r in rows(folder, "ksigns_iq2xs")]
    assert signs == [i | (bin(i).count("1") & 1) << 7 for i in range(128)]
    emit("uint8_t", "iq_signs", signs, 2, 16)
    masks = [pack([255 * (s >> j & 1) for j in range(8)], 8) for s in signs]
    emit("uint64_t", "iq_sign_masks", masks, 16, 5)

    values = [r[0] for r in rows(folder, "kvalues_iq4nl")]
    assert len(values) == 16
    print("\nconst int8_t iq4nl_values[16] = {" + ", ".join(map(str, values)) + "};")


if __name__ == "__main__":
    main()
