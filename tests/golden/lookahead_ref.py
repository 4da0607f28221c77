#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recall of the router lookahead on a Hugging Face checkpoint, by the numpy forward pass alone.

    lookahead_ref.py CHECKPOINT_DIR IDS.txt [DISTANCES]

The ids are one sequence. A prediction made in layer L for layer L + d applies the norm and the router of layer L + d to
the residual stream of layer L: after attention and shared expert of a MoE layer, after the whole of the last dense layer.
Prints, for each distance d, which share of the experts that the router of layer L + d then chose the prediction names."""
import sys

import numpy as np

import forward_ref


class LookaheadModel(forward_ref.Model):
    """forward_ref.Model that keeps, per layer, the residual stream from which experts are predicted."""

    def layer(self, i, x, pos, mask, full, tap):
        p = f"model.layers.{i}"
        a, mask = self.attention(p + ".self_attn", self.rms(x, p + ".input_layernorm", self.eps), pos, mask, full)
        x = x + a
        h = self.rms(x, p + ".post_attention_layernorm", self.eps)
        if p + ".mlp.gate.weight" in self.w:
            y, chosen = self.moe(p + ".mlp", h)
            tap.setdefault("chosen", {})[i] = chosen
            tap.setdefault("source", {})[i] = x + self.mlp(p + ".mlp.shared_experts", h)
        else:
            y = self.mlp(p + ".mlp", h)
            tap.setdefault("source", {})[i] = x + y
        return x + y, mask

    def predict(self, source, layer):
        p = f"model.layers.{layer}"
        h = self.rms(source, p + ".post_attention_layernorm", self.eps)
        score = 1 / (1 + np.exp(-self.lin(p + ".mlp.gate", h))) + self.w[p + ".mlp.gate.e_score_correction_bias"]
        return np.argsort(-score, kind="stable", axis=-1)[:, :self.c["num_experts_per_tok"]]


def main():
    model = LookaheadModel(sys.argv[1])
    ids = np.array([int(word) for word in open(sys.argv[2], encoding="ascii").read().split()])
    distances = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    _, tap, _ = model.forward(ids)
    first = min(tap["chosen"]) - 1  # the last dense layer
    for d in range(1, distances + 1):
        hits = asked = 0
        for layer in range(first, max(tap["chosen"]) + 1 - d):
            predicted, chosen = model.predict(tap["source"][layer], layer + d), tap["chosen"][layer + d]
            hits += int((predicted[:, :, None] == chosen[:, None, :]).any(1).sum())
            asked += chosen.size
        print(f"+{d}: recall {hits / asked:.4f} over {asked} choices")


main()
