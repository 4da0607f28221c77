#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Looks at an exported checkpoint by a reader of its own.

    check_export.py same SRC_DIR FOLDER            every tensor has the same dtype, shape and bits; the same configuration
    check_export.py decoded MODEL.gguf FOLDER      of packed types: values as an independent decoder has them (F32 folder)
    check_export.py rounded F32_FOLDER BF16_FOLDER matrices are the nearest BF16 numbers, biases of routers the same
    check_export.py untied SRC_DIR DIR             a tied checkpoint with a head of its own: the same numbers
    check_export.py tensors A.gguf B.gguf          the same tensors
    check_export.py sparse OUT.gguf                the released shape in BF16, zeros that take no room on the disk"""
import array
import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.dirname(__file__))
import check_convert
import gen_checkpoint

# what config.json may lack or have more: where the format has two spellings, or a default that GGUF does not hold
FREE = {"bos_token_id", "index_topk_pattern", "pretraining_tp", "mlp_bias", "mlp_layer_types", "dtype"}


def fail(text):
    sys.exit("check_export: " + text)


def load(path, name):
    with open(os.path.join(path, name), encoding="utf-8") as f:
        return json.load(f)


class Folder(check_convert.Source):
    """A checkpoint whose index, headers and file sizes must agree."""

    def __init__(self, path):
        super().__init__(path)
        self.path = path
        index = load(path, "model.safetensors.index.json")
        found = {name: os.path.basename(shard) for name, (shard, _, _) in self.entries.items()}
        if index["weight_map"] != found:
            fail("the index and the shards disagree")
        size, ends = 0, {}
        for name, (shard, base, info) in self.entries.items():
            begin, end = info["data_offsets"]
            each = gen_checkpoint.BYTES[info["dtype"]]
            if base % 8 or begin % each or end - begin != gen_checkpoint.size_of((name, info["shape"], info["dtype"])):
                fail(name + ": place and shape do not go together")
            size += end - begin
            ends[shard] = max(ends.get(shard, 0), base + end)
        if index["metadata"]["total_size"] != size:
            fail("total_size")
        for shard, end in ends.items():
            if os.path.getsize(shard) != end:
                fail(shard + " has another size than its header says")


def same(src_dir, path):
    src, out = check_convert.Source(src_dir), Folder(path)
    if set(src.entries) != set(out.entries):
        fail("tensors differ: " + " ".join(sorted(set(src.entries) ^ set(out.entries))[:6]))
    for name in src.entries:
        if src.shape(name) != out.shape(name) or src.raw(name) != out.raw(name):
            fail(f"{name}: {src.raw(name)[0]} {src.shape(name)} became {out.raw(name)[0]} {out.shape(name)}, or its bits differ")
    a, b = load(src_dir, "config.json"), load(path, "config.json")
    tokens = {"eos_token_id", "pad_token_id"} # a GGUF without a tokenizer has no ids
    for key in (set(a) | set(b)) - FREE - (set() if os.path.exists(os.path.join(path, "tokenizer.json")) else tokens):
        if a.get(key) != b.get(key):
            fail(f"config.json: {key} is {b.get(key)}, was {a.get(key)}")
    wide = {"F32": "float32", "BF16": "bfloat16"}[src.raw("model.embed_tokens.weight")[0]]
    if b["dtype"] != wide:
        fail(f"config.json: dtype is {b['dtype']}, {wide} expected")
    a, b = load(src_dir, "generation_config.json"), load(path, "generation_config.json")
    if any(a[k] != b.get(k) for k in ("temperature", "top_p")) or b.get("eos_token_id", a["eos_token_id"]) != a["eos_token_id"]:
        fail(f"generation_config.json: {b}, was {a}")
    print(len(src.entries), "tensors are the same")


def untied(src_dir, path):
    src, cfg = check_convert.Source(src_dir), load(src_dir, "config.json")
    shutil.copytree(src_dir, path)
    cfg["tie_word_embeddings"] = False
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(cfg, f)
    os.remove(os.path.join(path, "model.safetensors.index.json"))
    dtype, raw = src.raw("model.embed_tokens.weight")
    shape = src.shape("model.embed_tokens.weight")
    head = json.dumps({"lm_head.weight": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(raw)]}}).encode()
    with open(os.path.join(path, "head.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + raw)


def tensors(a, b):
    if check_convert.Model(a).tensors != check_convert.Model(b).tensors:
        fail("tensors differ")


def decode(kind, data):
    if kind == "F32":
        return array.array("f", data)
    if kind == "Q8_0":
        return [check_convert.half(data, at) * q for at in range(0, len(data), 34) for q in struct.unpack_from("<32b", data, at + 2)]
    size, block = check_convert.BLOCKS[kind]
    return [v for at in range(0, len(data), size) for v in block(data[at : at + size])]


def decoded(gguf, path):
    out, model, cfg = Folder(path), check_convert.Model(gguf), load(path, "config.json")
    kinds = {}
    for name, (ne, _, floats) in check_convert.expected(out, cfg, "q2").items():
        found_ne, kind, data = model.tensors[name]
        if found_ne != ne:
            fail(f"{name}: {found_ne}, {ne} expected")
        if name.startswith("blk.") and not name.startswith(("blk.0.", "blk.3.")):
            continue
        got = floats()
        n_rows = len(got) // ne[0]
        rows = range(0, n_rows, 4095 if n_rows > 8000 else 7) # some of each expert and head
        row_bytes = len(data) // n_rows
        for r in rows:
            want = decode(kind, data[r * row_bytes : (r + 1) * row_bytes])
            have = got[r * ne[0] : (r + 1) * ne[0]]
            near = 4e-7 * max(map(abs, want)) # one rounding of each product and difference
            if max(abs(x - y) for x, y in zip(want, have)) > near or len(want) != len(have):
                fail(f"{name} ({kind}), row {r}: values differ")
        kinds[kind] = kinds.get(kind, 0) + 1
    if set(kinds) != {"F32", "Q8_0", "Q2_K"}:
        fail(f"types compared: {kinds}")
    print(kinds)


def rounded(wide_path, path):
    wide, out = Folder(wide_path), Folder(path)
    for name in wide.entries:
        kind, raw = out.raw(name)
        kept = name.endswith("e_score_correction_bias")
        if kind != ("F32" if kept else "BF16"):
            fail(f"{name} is {kind}")
        if kept and wide.raw(name)[1] != raw:
            fail(name + " differs")
        if not kept and not name.startswith(("model.embed", "lm_head", "model.layers.0.", "model.layers.1.", "model.layers.2.")): # time
            check_convert.check_bf16(name, wide.floats(name), raw)


def sparse(path):
    cfg = dict(gen_checkpoint.COMMON, **gen_checkpoint.SHAPES["glm-5.2"])
    source = check_convert.Source(os.devnull)
    for name, shape, dtype in gen_checkpoint.tensor_list(cfg, "bf16", False, 1):
        source.entries[name] = (None, 0, {"shape": list(shape), "dtype": dtype})
    u32 = {
        "block_count": 79, "context_length": 1048576, "embedding_length": 6144, "vocab_size": 154880,
        "feed_forward_length": 12288, "attention.head_count": 64, "attention.head_count_kv": 1,
        "attention.q_lora_rank": 2048, "attention.kv_lora_rank": 512, "attention.key_length_mla": 256,
        "attention.value_length_mla": 256, "attention.indexer.head_count": 32, "attention.indexer.key_length": 128,
        "attention.indexer.top_k": 2048, "rope.dimension_count": 64, "leading_dense_block_count": 3, "expert_count": 256,
        "expert_used_count": 8, "expert_shared_count": 1, "expert_feed_forward_length": 2048, "nextn_predict_layers": 1}
    f32 = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 8e6, "expert_weights_scale": 2.5}

    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("glm-dsa")]
    keys += [text("glm-dsa." + k) + struct.pack("<II", 4, v) for k, v in u32.items()]
    keys += [text("glm-dsa." + k) + struct.pack("<If", 6, v) for k, v in f32.items()]
    at, infos = 0, []
    for name, (ne, kind, _) in check_convert.expected(source, cfg, "bf16").items():
        size = {"F32": 4, "BF16": 2}[kind]
        infos.append(text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, {"F32": 0, "BF16": 30}[kind], at))
        for n in ne:
            size *= n
        at += -(-size // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(keys)) + b"".join(keys + infos)
    with open(path, "wb") as f:
        f.write(head)
        f.truncate(-(-len(head) // 32) * 32 + at)


if __name__ == "__main__":
    {"same": same, "decoded": decoded, "rounded": rounded, "sparse": sparse, "untied": untied, "tensors": tensors}[sys.argv[1]](*sys.argv[2:])
