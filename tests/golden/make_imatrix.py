#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sums of squared activations of a GGUF, computed by forward_ref.py (numpy, float32) like make_golden.py's results.

    make_imatrix.py MODEL.gguf IDS CHUNK CHUNKS OUT.json

IDS: token ids in a text file, of which CHUNKS runs of CHUNK are computed, each from an empty context. OUT.json has for each
input of a matrix, by the name of one tensor with that input: "counts", the tokens of each matrix of its stack (one number where
all see all tokens), and for each matrix "sum", the sum over its columns, and "moment", the sum of column number times value, which
tells columns apart. tests/e2e/convert/imatrix.py compares what `glmstream imatrix` writes. Needs the packages numpy and gguf."""
import json
import re
import sys

import numpy as np

from make_golden import GgufModel

NAMES = {"self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.down_proj": "ffn_down", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp"}


class Observed(GgufModel):
    def __init__(self, path):
        super().__init__(path)
        self.sums, self.on = {}, True

    def add(self, name, matrix, x):
        if not self.on:
            return
        x = x.astype(np.float64)
        entry = self.sums.setdefault(name, {}).setdefault(matrix, [0, 0])
        entry[0] += len(x)
        entry[1] = entry[1] + (x * x).sum(0)

    def lin(self, name, x):
        layer, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
        expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(gate|down)_proj", rest)
        if rest in NAMES:
            self.add(f"blk.{layer}.{NAMES[rest]}.weight", 0, x)
        elif expert:
            self.add(f"blk.{layer}.ffn_{expert[2]}_exps.weight", int(expert[1]), x)
        return super().lin(name, x)

    def attention(self, p, x, pos, mask, full):
        """The superclass's, and before it the inputs of the two halves of kv_b, head by head."""
        c, layer = self.c, p.split(".")[2]
        heads, nope, rope, rank = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"))
        self.on = False
        r = self.rms(self.lin(p + ".q_a_proj", x), p + ".q_a_layernorm", self.latent_eps)
        q = self.lin(p + ".q_b_proj", r).reshape(len(x), heads, nope + rope)
        u = self.lin(p + ".kv_a_proj_with_mqa", x)
        latent = self.rms(u[:, :rank], p + ".kv_a_layernorm", self.latent_eps)
        key, query = self.rope(u[:, rank:], pos), self.rope(q[..., nope:], pos)
        seen = self.select(p, x, r, pos) if full else mask
        self.on = True
        kv_b = self.w[p + ".kv_b_proj.weight"].reshape(heads, -1, rank)
        for n in range(heads):
            score = (q[:, n, :nope] @ kv_b[n, :nope]) @ latent.T + query[:, n] @ key.T
            score = np.where(seen, score * np.float32((nope + rope) ** -0.5), -np.inf)
            e = np.exp(score - score.max(-1, keepdims=True))
            self.add(f"blk.{layer}.attn_k_b.weight", n, q[:, n, :nope])
            self.add(f"blk.{layer}.attn_v_b.weight", n, e / e.sum(-1, keepdims=True) @ latent)
        return super().attention(p, x, pos, mask, full)


def main():
    if len(sys.argv) != 6:
        raise SystemExit(__doc__)
    model = Observed(sys.argv[1])
    ids = np.array([int(i) for i in open(sys.argv[2], encoding="utf-8").read().split()])
    chunk, chunks = int(sys.argv[3]), int(sys.argv[4])
    for i in range(chunks):
        _, _, hidden = model.forward(ids[i * chunk:(i + 1) * chunk])
        model.add("output.weight", 0, hidden)
        print(i, flush=True)
    experts = sum(k.startswith("model.layers.1.mlp.experts.") and k.endswith(".gate_proj.weight") for k in model.w)
    out = {}
    for name, by_matrix in sorted(model.sums.items()):
        n = experts if "_exps" in name else max(by_matrix) + 1
        none = [0, np.zeros_like(next(iter(by_matrix.values()))[1])]
        entries = [by_matrix.get(i, none) for i in range(n)]
        counts = [e[0] for e in entries]
        out[name] = {"counts": counts if "_exps" in name else counts[:1],
                     "sum": [float(f"{e[1].sum():.7g}") for e in entries],
                     "moment": [float(f"{(e[1] * np.arange(len(e[1]))).sum():.7g}") for e in entries]}
    with open(sys.argv[5], "w", encoding="utf-8") as f:
        lines = [f'"{k}": {json.dumps(v, separators=(",", ":"))}' for k, v in out.items()]
        f.write("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
