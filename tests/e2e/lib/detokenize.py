#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The text of the token ids on stdin: detokenize.py tokenizer.json (byte-level BPE)."""
import json
import sys

printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [b for b in range(256) if b not in printable]
byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
with open(sys.argv[1], encoding="utf-8") as file:
    tokenizer = json.load(file)
pieces = {i: bytes(byte_of[c] for c in piece)
          for piece, i in tokenizer["model"]["vocab"].items()}
pieces |= {t["id"]: t["content"].encode() for t in tokenizer["added_tokens"]}
sys.stdout.buffer.write(b"".join(pieces[int(i)] for i in sys.stdin.read().split()))
