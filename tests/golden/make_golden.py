#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Golden results of a GGUF, computed by forward_ref.py (numpy, float32) from weights that the `gguf` package decodes.

    make_golden.py MODEL.gguf PROMPTS.json OUT_PREFIX

Nothing of glmstream is used: reader, block decoder and forward pass are all somebody else's or written apart, so the
test that compares with these files (tests/model/test_forward_golden.c) is a check against an independent implementation.
PROMPTS.json: {"name": {"ids": [...]}, ...}. Needs the packages numpy and gguf (PyPI).

OUT_PREFIX.json: the prompts, with "greedy_ids" (up to 48, with the stop token) for those of under 200 tokens, and
"mtp_chain_ids" (four drafts behind the trunk's argmax) with "mtp_chain_top", for each draft the 16 largest [id, logit].
OUT_PREFIX.safetensors, per prompt NAME: NAME.logits_last [vocab] F32; NAME.resid_last [layers][hidden] F32; NAME.router
[T][moe layers][k] U8 and NAME.index_topk_last.L [n] I32 for every full layer L, both sorted; NAME.mtp_logits_last [vocab] F16:
the hidden state taken after the final norm, the next token being the trunk's argmax."""
import json
import struct
import sys

import numpy as np
from gguf import GGUFReader, dequantize

import forward_ref

GREEDY_TOKENS = 48
GREEDY_PROMPT_LIMIT = 200
DRAFTS = 4
DRAFT_TOP = 16


class GgufModel(forward_ref.Model):
    """forward_ref.Model with its weights taken from a GGUF instead of a Hugging Face folder."""

    def __init__(self, path):
        self.dt = np.float32
        reader = GGUFReader(path)
        keys = {k.removeprefix("glm-dsa."): f.contents() for k, f in reader.fields.items()}
        layers = keys["block_count"] - keys["nextn_predict_layers"]
        self.latent_eps = keys.get("attention.latent_layer_norm_rms_epsilon", 1e-5)
        self.eps = keys["attention.layer_norm_rms_epsilon"]
        self.stops = keys.get("tokenizer.ggml.eos_token_ids") or [
            keys[f"tokenizer.ggml.{k}_token_id"] for k in ("eos", "eot", "eom")]
        self.full = [bool(t) for t in keys["attention.indexer.types"]]
        rope = keys["rope.dimension_count"]
        self.c = {
            "num_hidden_layers": layers, "index_topk": keys["attention.indexer.top_k"],
            "index_n_heads": keys["attention.indexer.head_count"], "index_head_dim": keys["attention.indexer.key_length"],
            "qk_rope_head_dim": rope, "qk_nope_head_dim": keys["attention.key_length_mla"] - rope,
            "v_head_dim": keys["attention.value_length_mla"], "kv_lora_rank": keys["attention.kv_lora_rank"],
            "num_attention_heads": keys["attention.head_count"], "num_experts_per_tok": keys["expert_used_count"],
            "routed_scaling_factor": keys["expert_weights_scale"], "rope_parameters": {"rope_theta": keys["rope.freq_base"]},
        }
        t = {x.name: dequantize(x.data, x.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(x.shape)])
             for x in reader.tensors}
        self.w = {"model.embed_tokens.weight": t["token_embd.weight"], "lm_head.weight": t["output.weight"],
                  "model.norm.weight": t["output_norm.weight"]}
        for i in range(layers + keys["nextn_predict_layers"]):
            self.layer_weights(i, {k.removeprefix(f"blk.{i}."): v for k, v in t.items() if k.startswith(f"blk.{i}.")})

    def layer_weights(self, i, t):
        p, w = f"model.layers.{i}.", self.w
        names = {
            "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q_a": "self_attn.q_a_proj",
            "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_q_b": "self_attn.q_b_proj",
            "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm": "self_attn.kv_a_layernorm",
            "attn_output": "self_attn.o_proj", "indexer.attn_q_b": "self_attn.indexer.wq_b",
            "indexer.attn_k": "self_attn.indexer.wk", "indexer.proj": "self_attn.indexer.weights_proj",
            "indexer.k_norm": "self_attn.indexer.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
            "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
            "nextn.eh_proj": "eh_proj", "nextn.enorm": "enorm", "nextn.hnorm": "hnorm",
            "nextn.shared_head_norm": "shared_head.norm",
        }
        for gguf_name, hf_name in names.items():
            if gguf_name + ".weight" in t:
                w[p + hf_name + ".weight"] = t[gguf_name + ".weight"]
        if "indexer.k_norm.bias" in t:
            w[p + "self_attn.indexer.k_norm.bias"] = t["indexer.k_norm.bias"]
        if "exp_probs_b.bias" in t:
            w[p + "mlp.gate.e_score_correction_bias"] = t["exp_probs_b.bias"]
        k_b, v_b = t["attn_k_b.weight"], t["attn_v_b.weight"]  # [heads][kv][nope], [heads][value][kv]
        kv_b = np.concatenate([k_b.transpose(0, 2, 1), v_b], axis=1)
        w[p + "self_attn.kv_b_proj.weight"] = kv_b.reshape(-1, kv_b.shape[-1])
        for kind in ("gate", "up", "down"):
            for e, m in enumerate(t.get(f"ffn_{kind}_exps.weight", ())):
                w[f"{p}mlp.experts.{e}.{kind}_proj.weight"] = m


def greedy(model, ids):
    out = []
    while len(out) < GREEDY_TOKENS:
        logits, _, _ = model.forward(np.array(ids + out))
        out.append(int(logits[-1].argmax()))
        if out[-1] in model.stops:
            break
    return out


def save_safetensors(path, tensors):
    names = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.int32): "I32", np.dtype(np.uint8): "U8"}
    header, data, at = {}, [], 0
    for k in sorted(tensors):
        a = np.ascontiguousarray(tensors[k])
        header[k] = {"dtype": names[a.dtype], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        data.append(a.tobytes())
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    model = GgufModel(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as f:
        prompts = json.load(f)
    out = {}
    for name, prompt in prompts.items():
        ids = prompt["ids"]
        logits, taps, hidden = model.forward(np.array(ids))
        following = np.append(ids[1:], logits[-1].argmax())
        out[f"{name}.logits_last"] = logits[-1].astype(np.float32)
        out[f"{name}.resid_last"] = np.stack(taps["resid"]).astype(np.float32)
        out[f"{name}.router"] = np.stack(taps["router"], 1).astype(np.uint8)
        for k, v in taps.items():
            if k.startswith("index_topk_last."):
                out[f"{name}.{k}"] = v.astype(np.int32)
        out[f"{name}.mtp_logits_last"] = model.mtp(hidden, following)[-1].astype(np.float16)
        chain = model.mtp_chain(hidden, following, DRAFTS)
        prompt["mtp_chain_ids"] = chain.argmax(-1).tolist()
        prompt["mtp_chain_top"] = [[[int(i), round(float(row[i]), 5)] for i in np.argsort(-row, kind="stable")[:DRAFT_TOP]]
                                   for row in chain]
        if len(ids) < GREEDY_PROMPT_LIMIT:
            prompt["greedy_ids"] = greedy(model, list(ids))
        print(name, len(ids), flush=True)
    save_safetensors(sys.argv[3] + ".safetensors", out)
    with open(sys.argv[3] + ".json", "w", encoding="utf-8") as f:
        lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in prompts.items()]
        f.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
