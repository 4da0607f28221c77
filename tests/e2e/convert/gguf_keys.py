#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads GGUF files with the gguf package (llama.cpp's own reader) and checks the type of every key against the table below.

    gguf_keys.py FILE.gguf ...          every key of the files has its type; an unknown key is an error
    gguf_keys.py --as-int32 FILE OUT    a copy whose token ids are INT32, as older versions of this program wrote them"""
import re
import struct
import sys

# What llama.cpp's loader asks for (gguf-py's writer methods, llama-vocab.cpp, llama-model-loader.cpp, models/glm-dsa.cpp).
# It compares types exactly: an INT32 where it asks for UINT32 is refused.
TYPES = [
    (r"general\.(architecture|name)", "STRING"),
    (r"general\.alignment", "UINT32"),
    (r"general\.sampling\.(temp|top_p)", "FLOAT32"),
    (r"glm-dsa\.(block_count|context_length|embedding_length|vocab_size|feed_forward_length)", "UINT32"),
    (r"glm-dsa\.attention\.(head_count|head_count_kv|key_length|value_length|key_length_mla|value_length_mla)", "UINT32"),
    (r"glm-dsa\.attention\.(q_lora_rank|kv_lora_rank)", "UINT32"),
    (r"glm-dsa\.attention\.indexer\.(head_count|key_length|top_k)", "UINT32"),
    (r"glm-dsa\.attention\.indexer\.types", "ARRAY BOOL"),
    (r"glm-dsa\.attention\.(latent_)?layer_norm_rms_epsilon", "FLOAT32"),
    (r"glm-dsa\.rope\.dimension_count", "UINT32"),
    (r"glm-dsa\.rope\.freq_base", "FLOAT32"),
    (r"glm-dsa\.(leading_dense_block_count|nextn_predict_layers)", "UINT32"),
    (r"glm-dsa\.expert_(count|used_count|shared_count|feed_forward_length|group_count|group_used_count|gating_func)", "UINT32"),
    (r"glm-dsa\.expert_weights_norm", "BOOL"),
    (r"glm-dsa\.expert_weights_scale", "FLOAT32"),
    (r"tokenizer\.ggml\.(model|pre)", "STRING"),
    (r"tokenizer\.ggml\.(tokens|merges)", "ARRAY STRING"),
    (r"tokenizer\.ggml\.token_type", "ARRAY INT32"),
    (r"tokenizer\.ggml\.(bos|eos|eot|eom|unknown|padding)_token_id", "UINT32"),
    (r"tokenizer\.ggml\.eos_token_ids", "ARRAY UINT32"),
    (r"tokenizer\.ggml\.add_(bos|eos)_token", "BOOL"),
    (r"tokenizer\.chat_template", "STRING"),
    (r"split\.(no|count)", "UINT16"),
    (r"split\.tensors\.count", "INT32"),
    # ours: llama.cpp does not look at them
    (r"glmstream\.version", "STRING"),
    (r"glmstream\.tie_word_embeddings", "BOOL"),
    (r"glmstream\.synth\.seed", "UINT64"),
    (r"glmstream\.synth\.alias", "UINT32"),
    (r"glmstream\.xxh3", "ARRAY UINT64"),
]


def check(path):
    import gguf

    bad = []
    for name, field in gguf.GGUFReader(path).fields.items():
        if name.startswith("GGUF."):
            continue  # the file's own head
        found = " ".join(t.name for t in field.types[:2])
        wanted = next((t for pattern, t in TYPES if re.fullmatch(pattern, name)), None)
        if found != wanted:
            bad.append("%s: %s is %s, %s expected" % (path, name, found, wanted or "no such key is"))
    return bad


def write_int32(source, target):
    data = bytearray(open(source, "rb").read())
    n = 0
    for match in re.finditer(rb"tokenizer\.ggml\.[a-z]+_token_ids?(?:(?<=s)\x09\0\0\0)?(?=\x04\0\0\0)", data):
        struct.pack_into("<I", data, match.end(), 5)  # GGUF_TYPE_INT32
        n += 1
    assert n >= 7, n
    open(target, "wb").write(data)


if sys.argv[1] == "--as-int32":
    write_int32(*sys.argv[2:])
else:
    sys.exit("\n".join(line for path in sys.argv[1:] for line in check(path)) or 0)
