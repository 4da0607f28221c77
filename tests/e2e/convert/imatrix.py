#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks of imatrix.sh and card_folder.sh: reference FILE [TOLERANCE] | twice ONE TWO | dat GGUF DAT | rare FILE JSON |
moments PLAIN FILE. Exit status 1 with what is wrong."""
import json
import math
import sys

from imatrix_files import read_dat, read_gguf

# float32 sums of a few hundred squares of float32 activations, which two programs compute in
# different orders; the worst seen is 7e-6
TOLERANCE = 1e-4
SAME_INPUT = {"attn_q_a": ["attn_kv_a_mqa"], "attn_q_b": [], "ffn_gate": ["ffn_up"],
              "ffn_gate_shexp": ["ffn_up_shexp", "ffn_gate_inp"], "ffn_gate_exps": ["ffn_up_exps"]}


def reference(path, tolerance=TOLERANCE):
    """Against numpy (tests/golden/make_imatrix.py)."""
    tolerance = float(tolerance)
    keys, tensors = read_gguf(path)
    assert keys["general.type"] == "imatrix" and keys["imatrix.datasets"] == ["LICENSE.wordnet"], keys
    assert keys["imatrix.chunk_count"] == 4 and keys["imatrix.chunk_size"] == 160, keys
    want = json.load(open("tests/data/pocket_imatrix.json", encoding="utf-8"))
    found, worst = set(), 0
    for name, w in want.items():
        (_, counts), (shape, values) = tensors[name + ".counts"], tensors[name + ".in_sum2"]
        assert list(counts) == w["counts"], f"{name}: counts {counts}, expected {w['counts']}"
        assert shape[1] == len(counts), f"{name}: shape {shape}"
        n, cols = len(w["sum"]), len(values) // len(w["sum"])
        for i in range(n):
            row = values[i * cols:(i + 1) * cols]
            for got, ref in ((math.fsum(row), w["sum"][i]), (math.fsum(c * v for c, v in enumerate(row)), w["moment"][i])):
                assert abs(got - ref) <= tolerance * abs(ref), f"{name}, matrix {i}: {got}, expected {ref}"
                worst = max(worst, abs(got - ref) / abs(ref) if ref else 0)
        found.add(name)
        block, _, tensor = name.removesuffix(".weight").rpartition(".")
        for other in SAME_INPUT.get(tensor, ()):
            other = f"{block}.{other}.weight"
            assert tensors[other + ".in_sum2"] == (shape, values), f"{other}: not {name}"
            found.add(other)
    rest = {k.removesuffix(".in_sum2") for k in tensors if k.endswith(".in_sum2")} - found
    assert all(".indexer." in k for k in rest) and len(rest) == 3 * 4, rest
    for k in rest:
        like = "attn_q_b" if k.endswith("attn_q_b.weight") else "attn_q_a"
        like = k.split("indexer.")[0] + like + ".weight"
        assert tensors[k + ".in_sum2"] == tensors[like + ".in_sum2"], k
    print(f"{len(want)} inputs, worst relative difference {worst:.1e}")


def twice(one, two):
    """A file merged with itself has twice of everything."""
    (k1, t1), (k2, t2) = read_gguf(one), read_gguf(two)
    assert k2["imatrix.chunk_count"] == 2 * k1["imatrix.chunk_count"]
    assert k2["imatrix.chunk_size"] == k1["imatrix.chunk_size"] and k2["imatrix.datasets"] == k1["imatrix.datasets"]
    assert not any(k.startswith("glmstream.imatrix.") for k in k2), "a merged file has no position"
    assert t1.keys() == t2.keys()
    for name, (shape, values) in t1.items():
        assert t2[name] == (shape, tuple(map((2.0).__mul__, values))), name


def dat(gguf, path):
    keys, tensors = read_gguf(gguf)
    entries, chunks, dataset = read_dat(path)
    assert chunks == keys["imatrix.chunk_count"] and dataset == keys["imatrix.datasets"][-1]
    assert {k + ".in_sum2" for k in entries} == {k for k in tensors if k.endswith(".in_sum2")}
    for name, (calls, values) in entries.items():
        counts, sums = tensors[name + ".counts"][1], tensors[name + ".in_sum2"][1]
        assert calls == math.ceil(max(counts) / keys["imatrix.chunk_size"]), name
        for i, v in enumerate(values):
            n = counts[i * len(counts) // len(values)]
            mean = sums[i] / n if n else 1
            assert abs(v - mean * calls) <= 1e-6 * abs(v), (name, i, v, mean, calls)


def rare(path, said):
    """The experts that the report names are those with fewer tokens."""
    said = json.load(open(said, encoding="utf-8"))
    _, tensors = read_gguf(path)
    want, n = [], 0
    for name, (_, counts) in tensors.items():
        if name.endswith(".ffn_gate_exps.weight.counts"):
            n += len(counts)
            want += [(int(name.split(".")[1]), i, c) for i, c in enumerate(counts) if c < said["rare_below"]]
    assert want and said["experts"] == n and n == 6 * 32, said
    assert sorted(want) == sorted((r["layer"], r["expert"], r["tokens"]) for r in said["rare"]), said


def moments(plain, path):
    """Besides what a file without them has: products of columns, whose diagonal are the squares."""
    (_, have), (_, all_) = read_gguf(plain), read_gguf(path)
    extra = {k: v for k, v in all_.items() if k not in have}
    assert all(all_[k] == v for k, v in have.items()), "the sums of squares differ"
    assert sorted({k.rsplit(".", 1)[0] for k in extra}) == sorted(
        f"blk.{layer}.{name}.moments" for layer in range(1, 7) for name in ("ffn_in", "ffn_down_exps")), sorted(extra)
    negative = 0
    for name in sorted(k for k in extra if k.endswith(".in_sum2")):
        down = "ffn_down_exps" in name
        like = name.replace("ffn_in", "ffn_gate_shexp").replace(".moments.in_sum2", ".weight")
        assert extra[name.replace(".in_sum2", ".counts")][1] == all_[like + ".counts"][1], name
        values, squares = extra[name][1], all_[like + ".in_sum2"][1]
        n = len(values) // (256 * 257 // 2)
        assert n == (32 if down else 1) and len(squares) == n * 256, (name, n)
        for i in range(0, n, 5):
            at, diagonal = i * 256 * 257 // 2, []
            for c in range(256):
                diagonal.append(values[at])
                row = values[at:at + 256 - c]
                negative += sum(v < 0 for v in row)
                # |x y| <= (x x + y y) / 2, added up
                assert all(2 * abs(v) <= 1.001 * (values[at] + squares[i * 256 + c + k]) + 1e-6 for k, v in enumerate(row)), name
                at += 256 - c
            for c, v in enumerate(diagonal):
                want = squares[i * 256 + c]
                assert abs(v - want) <= 1e-5 * want, (name, i, c, v, want)
    assert negative > 1000, negative


def main():
    checks = {"reference": reference, "moments": moments, "twice": twice, "dat": dat, "rare": rare}
    try:
        checks[sys.argv[1]](*sys.argv[2:])
    except AssertionError as e:
        print(f"{sys.argv[1]}: {str(e)[:400]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
