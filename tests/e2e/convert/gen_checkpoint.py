#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A checkpoint of the GLM-5.2 architecture with random weights, in the released Hugging Face layout: config.json,
generation_config.json, safetensors shards, index. Plain Python; the same arguments give the same bytes.

    gen_checkpoint.py DIR [--shape tiny|ragged|even|big|glm-5.2] [--family glm-5|glm-5.2] [--dtype bf16|f16|f32|fp8] [--fused]
                      [--shards N] [--headers-only] [--no-mtp] [--tied] [--layers N] [--set KEY=JSON ...] [--vocab N]
                      [--last-expert-f32] [--tokenizer FILE]

Shapes: tiny (every row a multiple of 256), ragged (nothing is a multiple of anything: FP8 blocks straddle heads and edges,
rows fit no 256-block), even (so many indexer heads that no position has a score of 0), big (4.6 GB as BF16), glm-5.2 (the
real one; with --headers-only the shards are sparse files of the real size that hold nothing but their headers).

Families: glm-5.2 (5.3 has the same keys) has layers that share the selection of an indexer; in glm-5 (5.1 has the same keys)
every layer has an indexer, config.json has none of the keys of sharing, and rope_theta is another."""
import argparse
import json
import os
import random
import shutil
import struct

COMMON = dict(
    architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", hidden_act="silu", rms_norm_eps=1e-5, n_shared_experts=1,
    routed_scaling_factor=2.5, n_group=1, topk_group=1, norm_topk_prob=True, scoring_func="sigmoid", topk_method="noaux_tc",
    moe_layer_freq=1, tie_word_embeddings=False, attention_bias=False, attention_dropout=0.0, rope_interleave=True,
    indexer_rope_interleave=True, rope_parameters={"rope_theta": 8000000, "rope_type": "default"}, index_topk_freq=4,
    index_skip_topk_offset=3, index_topk_pattern=None, index_share_for_mtp_iteration=True, num_nextn_predict_layers=1,
    initializer_range=0.02, use_cache=True, dtype="bfloat16", ep_size=1, pretraining_tp=1)

SHAPES = {
    "tiny": dict(
        vocab_size=8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=2, q_lora_rank=256, kv_lora_rank=256,
        qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, index_n_heads=2, index_head_dim=128, index_topk=64,
        first_k_dense_replace=1, intermediate_size=512, moe_intermediate_size=256, n_routed_experts=4, num_experts_per_tok=2,
        max_position_embeddings=4096),
    "ragged": dict(
        vocab_size=515, hidden_size=320, num_hidden_layers=5, num_attention_heads=3, q_lora_rank=200, kv_lora_rank=160,
        qk_nope_head_dim=96, qk_rope_head_dim=32, v_head_dim=72, index_n_heads=3, index_head_dim=48, index_topk=64,
        first_k_dense_replace=2, intermediate_size=417, moe_intermediate_size=144, n_routed_experts=5, num_experts_per_tok=2,
        max_position_embeddings=4096),
    "even": dict(
        vocab_size=515, hidden_size=192, num_hidden_layers=7, num_attention_heads=4, q_lora_rank=128, kv_lora_rank=128,
        qk_nope_head_dim=48, qk_rope_head_dim=16, v_head_dim=64, index_n_heads=16, index_head_dim=64, index_topk=64,
        first_k_dense_replace=2, intermediate_size=384, moe_intermediate_size=96, n_routed_experts=8, num_experts_per_tok=3,
        max_position_embeddings=4096),
    "big": dict(
        vocab_size=32768, hidden_size=2048, num_hidden_layers=6, num_attention_heads=16, q_lora_rank=1024, kv_lora_rank=512,
        qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, index_n_heads=8, index_head_dim=128, index_topk=512,
        first_k_dense_replace=1, intermediate_size=6144, moe_intermediate_size=1024, n_routed_experts=52,
        num_experts_per_tok=4, max_position_embeddings=65536),
    "glm-5.2": dict(
        vocab_size=154880, hidden_size=6144, num_hidden_layers=78, num_attention_heads=64, q_lora_rank=2048, kv_lora_rank=512,
        qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, index_n_heads=32, index_head_dim=128, index_topk=2048,
        first_k_dense_replace=3, intermediate_size=12288, moe_intermediate_size=2048, n_routed_experts=256,
        num_experts_per_tok=8, max_position_embeddings=1048576, eos_token_id=[154820, 154827, 154829], pad_token_id=154820),
}

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}


# What config.json of a family says otherwise than COMMON; None: the key is absent.
FAMILIES = {
    "glm-5.2": {},
    "glm-5": dict(
        index_topk_freq=None, index_skip_topk_offset=None, index_topk_pattern=None, index_share_for_mtp_iteration=None,
        indexer_types=None, rope_parameters={"rope_theta": 1000000, "rope_type": "default"}),
}


def is_full(cfg, layer):
    """Whether a layer has an indexer: no keys of sharing say that each has."""
    freq, offset = cfg.get("index_topk_freq", 1), cfg.get("index_skip_topk_offset", 0)
    return layer >= cfg["num_hidden_layers"] or max(layer - offset + 1, 0) % freq == 0


def tensor_list(cfg, dtype, fused, mtp):
    """[(name, shape, dtype)] in the text order of names, as released files have it."""
    wide = {"bf16": "BF16", "f16": "F16", "f32": "F32", "fp8": "BF16"}[dtype]
    out = []

    def plain(name, *shape):
        out.append((name, shape, wide))

    def matrix(name, *shape, suffix=".weight"):
        if dtype != "fp8":
            return plain(name + suffix, *shape)
        out.append((name + suffix, shape, "F8_E4M3"))
        out.append((name + suffix + "_scale_inv", shape[:-2] + (-(-shape[-2] // 128), -(-shape[-1] // 128)), "F32"))

    hidden, heads = cfg["hidden_size"], cfg["num_attention_heads"]
    nope, rope, v_dim = cfg["qk_nope_head_dim"], cfg["qk_rope_head_dim"], cfg["v_head_dim"]
    q_lora, kv_lora = cfg["q_lora_rank"], cfg["kv_lora_rank"]
    experts, width = cfg["n_routed_experts"], cfg["moe_intermediate_size"]
    layers = cfg["num_hidden_layers"]
    plain("model.embed_tokens.weight", cfg["vocab_size"], hidden)
    plain("lm_head.weight", cfg["vocab_size"], hidden)
    plain("model.norm.weight", hidden)
    for layer in range(layers + mtp):
        p = f"model.layers.{layer}."
        a = p + "self_attn."
        plain(p + "input_layernorm.weight", hidden)
        plain(p + "post_attention_layernorm.weight", hidden)
        matrix(a + "q_a_proj", q_lora, hidden)
        plain(a + "q_a_layernorm.weight", q_lora)
        matrix(a + "q_b_proj", heads * (nope + rope), q_lora)
        matrix(a + "kv_a_proj_with_mqa", kv_lora + rope, hidden)
        plain(a + "kv_a_layernorm.weight", kv_lora)
        matrix(a + "kv_b_proj", heads * (nope + v_dim), kv_lora)
        matrix(a + "o_proj", hidden, heads * v_dim)
        if is_full(cfg, layer):
            dim = cfg["index_head_dim"]
            matrix(a + "indexer.wq_b", cfg["index_n_heads"] * dim, q_lora)
            matrix(a + "indexer.wk", dim, hidden)
            plain(a + "indexer.k_norm.weight", dim)
            plain(a + "indexer.k_norm.bias", dim)
            plain(a + "indexer.weights_proj.weight", cfg["index_n_heads"], hidden)
        if layer < min(cfg["first_k_dense_replace"], layers):
            matrix(p + "mlp.gate_proj", cfg["intermediate_size"], hidden)
            matrix(p + "mlp.up_proj", cfg["intermediate_size"], hidden)
            matrix(p + "mlp.down_proj", hidden, cfg["intermediate_size"])
        else:
            plain(p + "mlp.gate.weight", experts, hidden)
            out.append((p + "mlp.gate.e_score_correction_bias", (experts,), "F32"))
            if fused:
                matrix(p + "mlp.experts.gate_up_proj", experts, 2 * width, hidden, suffix="")
                matrix(p + "mlp.experts.down_proj", experts, hidden, width, suffix="")
            else:
                for x in range(experts):
                    matrix(p + f"mlp.experts.{x}.gate_proj", width, hidden)
                    matrix(p + f"mlp.experts.{x}.up_proj", width, hidden)
                    matrix(p + f"mlp.experts.{x}.down_proj", hidden, width)
            matrix(p + "mlp.shared_experts.gate_proj", width, hidden)
            matrix(p + "mlp.shared_experts.up_proj", width, hidden)
            matrix(p + "mlp.shared_experts.down_proj", hidden, width)
        if layer >= layers:
            plain(p + "eh_proj.weight", hidden, 2 * hidden)
            plain(p + "enorm.weight", hidden)
            plain(p + "hnorm.weight", hidden)
            plain(p + "shared_head.norm.weight", hidden)
    return sorted(out)


def size_of(tensor):
    n = BYTES[tensor[2]]
    for d in tensor[1]:
        n *= d
    return n


# The byte that holds sign and high exponent bits is mapped so that every value is finite and of moderate size.
HIGH = {
    "BF16": bytes((b & 0x80) | 0x3C | (b & 1) for b in range(256)),  # 2^-7 .. 2^-3
    "F32": bytes((b & 0x80) | 0x3C | (b & 1) for b in range(256)),
    "F16": bytes((b & 0x80) | 0x20 | (b & 15) for b in range(256)),  # 2^-7 .. 2^-3
}
NO_NAN = bytes(b - 1 if b & 0x7F == 0x7F else b for b in range(256))


def random_values(rng, dtype, n, name):
    if dtype == "F8_E4M3":
        return rng.randbytes(n).translate(NO_NAN)
    each = BYTES[dtype]
    raw = bytearray(rng.randbytes(n * each))
    raw[each - 1 :: each] = bytes(raw[each - 1 :: each]).translate(HIGH[dtype])
    if name.endswith("_scale_inv"):  # positive and small
        raw[3::4] = bytes(0x3A for _ in range(n))
    return bytes(raw)


def write_shard(path, tensors, headers_only, seed):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for t in tensors:
        header[t[0]] = {"dtype": t[2], "shape": list(t[1]), "data_offsets": [at, at + size_of(t)]}
        at += size_of(t)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if headers_only:
            f.truncate(8 + len(text) + at)
            return at
        for t in tensors:
            rng = random.Random(f"{seed} {t[0]}")
            left, piece = size_of(t) // BYTES[t[2]], 1 << 22
            while left:
                n = min(left, piece)
                f.write(random_values(rng, t[2], n, t[0]))
                left -= n
    return at


def main():
    p = argparse.ArgumentParser(description="random GLM-5.2-shaped checkpoint")
    p.add_argument("dir")
    p.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    p.add_argument("--family", choices=sorted(FAMILIES), default="glm-5.2")
    p.add_argument("--dtype", choices=["bf16", "f16", "f32", "fp8"], default="bf16")
    p.add_argument("--fused", action="store_true")
    p.add_argument("--shards", type=int, default=3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--headers-only", action="store_true")
    p.add_argument("--no-mtp", action="store_true", help="leave the MTP layer out, though config.json announces it")
    p.add_argument("--tied", action="store_true", help="the embedding is the head too")
    p.add_argument("--layers", type=int, metavar="N", help="cut the trunk to N layers")
    p.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="change a key of config.json; null removes it")
    p.add_argument("--vocab", type=int, help="rows of embedding and head, for a tokenizer")
    p.add_argument("--last-expert-f32", action="store_true", help="the matrices of each layer's last expert are F32")
    p.add_argument("--tokenizer", metavar="FILE")
    a = p.parse_args()

    cfg = dict(COMMON, **SHAPES[a.shape])
    cfg["indexer_types"] = []  # filled in below, where the family has it
    cfg.update(FAMILIES[a.family])
    cfg = {k: v for k, v in cfg.items() if v is not None or k == "index_topk_pattern" and a.family == "glm-5.2"}
    cfg["num_hidden_layers"] = a.layers or cfg["num_hidden_layers"]
    cfg["vocab_size"] = a.vocab or cfg["vocab_size"]
    cfg["num_key_value_heads"] = cfg["num_attention_heads"]
    cfg["qk_head_dim"] = cfg["qk_nope_head_dim"] + cfg["qk_rope_head_dim"]
    cfg["head_dim"] = cfg["qk_nope_head_dim"]  # as released; means nothing
    if "indexer_types" in cfg:
        cfg["indexer_types"] = ["full" if is_full(cfg, i) else "shared" for i in range(cfg["num_hidden_layers"])]
    cfg["mlp_layer_types"] = [
        "dense" if i < cfg["first_k_dense_replace"] else "sparse" for i in range(cfg["num_hidden_layers"])]
    cfg.setdefault("eos_token_id", [cfg["vocab_size"] - 64, cfg["vocab_size"] - 57])
    cfg.setdefault("pad_token_id", cfg["vocab_size"] - 64)
    tensors = tensor_list(cfg, a.dtype, a.fused, 0 if a.no_mtp else cfg["num_nextn_predict_layers"])
    if a.tied:
        cfg["tie_word_embeddings"] = True
        tensors = [t for t in tensors if t[0] != "lm_head.weight"]
    if a.last_expert_f32:
        last = f".experts.{cfg['n_routed_experts'] - 1}."
        tensors = [(t[0], t[1], "F32") if last in t[0] else t for t in tensors
                   if last not in t[0] or not t[0].endswith("_scale_inv")]
    if a.dtype == "fp8":
        cfg["quantization_config"] = {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    for item in a.set:
        key, _, value = item.partition("=")
        value = json.loads(value)
        if value is None:
            cfg.pop(key, None)
        else:
            cfg[key] = value

    os.makedirs(a.dir, exist_ok=True)
    total, weight_map, begin, done = sum(map(size_of, tensors)), {}, 0, 0
    for s in range(a.shards):
        end, limit = begin, total * (s + 1) // a.shards
        while end < len(tensors) and (done < limit or s + 1 == a.shards):
            done += size_of(tensors[end])
            end += 1
        name = "model-%05d-of-%05d.safetensors" % (s + 1, a.shards)
        write_shard(os.path.join(a.dir, name), tensors[begin:end], a.headers_only, a.seed)
        weight_map.update((t[0], name) for t in tensors[begin:end])
        begin = end
    for name, value in (
        ("config.json", cfg),
        ("generation_config.json", {"eos_token_id": cfg["eos_token_id"], "temperature": 1.0, "top_p": 0.95}),
        ("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}),
    ):
        with open(os.path.join(a.dir, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=1)
    if a.tokenizer:
        shutil.copyfile(a.tokenizer, os.path.join(a.dir, "tokenizer.json"))
    print(len(tensors), "tensors", total, "bytes")


if __name__ == "__main__":
    main()
