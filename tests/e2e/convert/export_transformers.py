# SPDX-License-Identifier: MIT
"""Loads an exported folder with Hugging Face transformers, in float32 on the CPU.

    export_transformers.py same A B IDS     the logits of two folders are equal to the last bit
    export_transformers.py near A FILE IDS  those of A are within 1e-3 of a file that dump-logits --all wrote

IDS: a file of token ids. Exit status 1 when they are not."""
import sys

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
NEAR = 1e-3


@torch.no_grad()
def logits(folder, ids):
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    # the draft layer alone is not known to transformers
    layer = f"model.layers.{model.config.num_hidden_layers}."
    wrong = [k for k in loading["unexpected_keys"] if not k.startswith(layer)] + list(loading["missing_keys"])
    if wrong:
        sys.exit(f"{folder}: {wrong[0]} is missing or unknown")
    return model.eval()(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def main():
    how, folder, other, name = sys.argv[1:]
    with open(name, encoding="ascii") as f:
        ids = [int(word) for word in f.read().split()]
    a = logits(folder, ids)
    if how == "same":
        b = logits(other, ids)
    else:
        with open(other, "rb") as f:
            b = torch.frombuffer(bytearray(f.read()), dtype=torch.float32).reshape(len(ids), -1)
    difference = (a - b).abs().max().item()
    print(f"{folder}: {len(ids)} rows, largest difference {difference:.2g}")
    sys.exit(not (torch.equal(a, b) if how == "same" else difference <= NEAR))


main()
