#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""llama.cpp in the venv that get_llamacpp.sh makes.

peer.py logits MODEL IDS OUT.f32 N_VOCAB   logits of the last of the token ids, as
                                           `dump-logits --kv-f32` writes them
peer.py quantize FROM TO PRESET            what llama-quantize does; PRESET: its number
peer.py experts FROM TO IMPORTANCE.dat PATTERN TYPE
                                           llama-quantize of the tensors that match a regular
                                           expression, to TYPE (ggml's number); others as BF16
"""
import ctypes
import os
import sys
from pathlib import Path

import xllamacpp


def main():
    # the wheel's module holds llama.cpp and ggml; libpeer.so finds their functions there
    module = next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))
    ctypes.CDLL(str(module), mode=ctypes.RTLD_GLOBAL)
    peer = ctypes.CDLL(str(Path(sys.prefix).parent / "libpeer.so"))
    threads = len(os.sched_getaffinity(0))
    if sys.argv[1] == "logits":
        model, ids, out, n_vocab = sys.argv[2:]
        ids = [int(i) for i in Path(ids).read_text().split()]
        row = (ctypes.c_float * int(n_vocab))()
        code = peer.peer_logits(model.encode(), (ctypes.c_int32 * len(ids))(*ids), len(ids),
                                threads, row, int(n_vocab))
        if not code:
            Path(out).write_bytes(bytes(row))
        return code
    if sys.argv[1] == "experts":
        *texts, number = sys.argv[2:]
        return peer.peer_quantize_experts(*[t.encode() for t in texts], int(number), threads)
    model, to, preset = sys.argv[2:]
    return peer.peer_quantize(model.encode(), to.encode(), int(preset), threads)


if __name__ == "__main__":
    sys.exit(main())
