#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares a converted GGUF with its checkpoint, value by value, by a computation of its own: readers for both containers,
the mapping of names, FP8 scales, the split of kv_b, and decoders of the block types are all written here again.

    check_convert.py SRC_DIR OUT.gguf RECIPE

F32 and BF16 must match to the bit; Q8_0 must hold nearest codes at a good scale; Q4_K, Q2_K and IQ2_XXS must stay below
a relative error (a wrong expert, head or row would be near 1.4). Of packed types a sample of the blocks is decoded."""
import array
import csv
import glob
import json
import math
import os
import re
import struct
import sys

EXPERT = {"f32": "F32", "bf16": "BF16", "q8": "Q8_0", "q4": "Q4_K", "q2": "Q2_K", "iq2": "IQ2_XXS"}
DENSE = {"f32": "F32", "bf16": "BF16", "q8": "Q8_0", "q4": "Q8_0", "q2": "Q8_0", "iq2": "Q8_0"}
TYPES = {0: ("F32", 1, 4), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 12: ("Q4_K", 256, 144), 16: ("IQ2_XXS", 256, 66),
         30: ("BF16", 1, 2)}
WORST = {"Q4_K": 0.075, "Q2_K": 0.28, "IQ2_XXS": 0.36}  # rms error / rms value over a tensor


def fail(text):
    sys.exit("check_convert: " + text)


# ---- safetensors -------------------------------------------------------------------------------------------------------

def f8_table():
    out = []
    for b in range(256):
        sign, e, m = -1.0 if b & 128 else 1.0, b >> 3 & 15, b & 7
        out.append(sign * ((1 + m / 8) * 2.0 ** (e - 7) if e else m / 8 * 2.0**-6))
    return out


F8 = f8_table()


class Source:
    def __init__(self, path):
        self.entries = {}
        for shard in glob.glob(os.path.join(path, "*.safetensors")):
            with open(shard, "rb") as f:
                n, = struct.unpack("<Q", f.read(8))
                for name, info in json.loads(f.read(n)).items():
                    if name != "__metadata__":
                        self.entries[name] = (shard, 8 + n, info)

    def shape(self, name):
        return self.entries[name][2]["shape"]

    def raw(self, name):
        shard, base, info = self.entries[name]
        begin, end = info["data_offsets"]
        with open(shard, "rb") as f:
            f.seek(base + begin)
            return info["dtype"], f.read(end - begin)

    def floats(self, name):
        """array('f') of all values, FP8 scales applied."""
        dtype, raw = self.raw(name)
        if dtype == "F32":
            return array.array("f", raw)
        if dtype == "BF16":
            wide = bytearray(2 * len(raw))
            wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
            return array.array("f", bytes(wide))
        if dtype == "F16":
            return array.array("f", struct.unpack("<%de" % (len(raw) // 2), raw))
        assert dtype == "F8_E4M3", dtype
        scales = self.floats(name + "_scale_inv")
        *stack, rows, cols = self.shape(name)
        n_rows, n_cols = -(-rows // 128), -(-cols // 128)
        out = array.array("f")
        for m in range(math.prod(stack)):
            for r in range(rows):
                at = (m * rows + r) * cols
                if r % 128 == 0:  # exact in double, rounded once by the array
                    first = (m * n_rows + r // 128) * n_cols
                    scaled = [[v * s for v in F8].__getitem__ for s in scales[first : first + n_cols]]
                for b in range(n_cols):
                    out.extend(map(scaled[b], raw[at + 128 * b : at + min(128 * (b + 1), cols)]))
        return out


# ---- GGUF --------------------------------------------------------------------------------------------------------------

class Model:
    def __init__(self, path):
        self.keys, self.tensors = {}, {}
        m = re.match(r"(.*)-00001-of-(\d{5})\.gguf$", path)
        paths = ["%s-%05d-of-%s.gguf" % (m[1], i + 1, m[2]) for i in range(int(m[2]))] if m else [path]
        for i, p in enumerate(paths):
            with open(p, "rb") as f:
                self.data, self.at = f.read(), 0
            self.read(first=i == 0)

    def take(self, fmt):
        v = struct.unpack_from("<" + fmt, self.data, self.at)
        self.at += struct.calcsize("<" + fmt)
        return v[0]

    def string(self):
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode()

    def value(self, t):
        if t == 8:
            return self.string()
        if t == 9:
            inner, n = self.take("I"), self.take("Q")
            if inner in (8, 9):
                return [self.value(inner) for _ in range(n)]
            fmt = "<%d%s" % (n, "BbHhIif?..Qqd"[inner])
            self.at += struct.calcsize(fmt)
            return list(struct.unpack_from(fmt, self.data, self.at - struct.calcsize(fmt)))
        return self.take("BbHhIif?..Qqd"[t])

    def read(self, first):
        if self.data[:4] != b"GGUF":
            fail("not a GGUF")
        self.at = 4
        if self.take("I") != 3:
            fail("version")
        n_tensors, n_keys = self.take("Q"), self.take("Q")
        keys = {}
        for _ in range(n_keys):
            k = self.string()
            keys[k] = self.value(self.take("I"))
        if first:
            self.keys = keys
        align = keys["general.alignment"]
        infos = []
        for _ in range(n_tensors):
            name = self.string()
            ne = [self.take("Q") for _ in range(self.take("I"))]
            infos.append((name, ne, TYPES[self.take("I")], self.take("Q")))
        base = -(-self.at // align) * align
        for name, ne, (t, per, size), offset in infos:
            n = math.prod(ne) // per * size
            if (base + offset) % align:
                fail(f"{name}: not at a multiple of {align}")
            if name in self.tensors:
                fail(name + " twice")
            self.tensors[name] = (ne, t, self.data[base + offset : base + offset + n])
            if len(self.tensors[name][2]) != n:
                fail(name + ": cut off")


def half(b, i):
    return struct.unpack_from("<e", b, i)[0]


def decode_q4_k(b):
    d, dmin, sc, out = half(b, 0), half(b, 2), b[4:16], []
    for k in range(8):
        if k < 4:
            s, m = sc[k] & 63, sc[k + 4] & 63
        else:
            s, m = sc[k + 4] & 15 | sc[k - 4] >> 6 << 4, sc[k + 4] >> 4 | sc[k] >> 6 << 4
        a, c, shift = d * s, dmin * m, 4 * (k & 1)
        out += [a * (q >> shift & 15) - c for q in b[16 + 32 * (k // 2) : 48 + 32 * (k // 2)]]
    return out


def decode_q2_k(b):
    d, dmin, out = half(b, 80), half(b, 82), []
    for j in range(16):
        h, g, part = j // 8, j % 8 // 2, j % 2
        a, c, at = d * (b[j] & 15), dmin * (b[j] >> 4), 16 + 32 * h + 16 * part
        out += [a * (q >> 2 * g & 3) - c for q in b[at : at + 16]]
    return out


def load_grid():
    path = os.path.join(os.path.dirname(__file__), "..", "..", "data", "quant", "iq2xxs_grid.csv")
    with open(path, newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    return [[int(r["v%d" % i]) for i in range(8)] for r in rows]


GRID = []


def decode_iq2_xxs(b):
    if not GRID:
        GRID.extend(load_grid())
    d, out = half(b, 0), []
    for k in range(8):
        a0, a1 = struct.unpack_from("<II", b, 2 + 8 * k)
        scale = d * (0.5 + (a1 >> 28)) * 0.25
        for part in range(4):
            index = a1 >> 7 * part & 127
            sign = index | (bin(index).count("1") & 1) << 7
            out += [scale * (-v if sign >> i & 1 else v) for i, v in enumerate(GRID[a0 >> 8 * part & 255])]
    return out


BLOCKS = {"Q4_K": (144, decode_q4_k), "Q2_K": (84, decode_q2_k), "IQ2_XXS": (66, decode_iq2_xxs)}


def to_half(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def sample(n_blocks, step):
    """All blocks of a small tensor, else every step-th and the last. No row has a multiple of step blocks: every column is sampled."""
    return range(n_blocks) if n_blocks < 256 else sorted({*range(0, n_blocks, step), n_blocks - 1})


def check_q8_0(name, want, data):
    """Every code is the nearest at its block's scale (or the last one), and the scales are about as good as max/127."""
    error = limit = 0.0
    for i in sample(len(want) // 32, 23):
        x = want[32 * i : 32 * i + 32]
        plain = to_half(max(map(abs, x)) / 127)
        d = half(data, 34 * i)
        for v, q in zip(x, struct.unpack_from("<32b", data, 34 * i + 2)):
            off = abs(v - d * q)
            if off > 0.501 * abs(d) and (q not in (-128, 127) or off > 1.01 * abs(d)):
                fail(f"{name}: block {i} stores {v} as {q} x {d}")
            error += off * off
        limit += sum((v - plain * max(-127, min(127, round(v / plain)))) ** 2 for v in x) if plain else 0
    if error > 1.05 * limit:
        fail(f"{name}: squared error {error}, at most {limit} expected")


def check_blocks(name, kind, want, data):
    size, decode = BLOCKS[kind]
    error = power = 0.0
    for i in sample(len(want) // 256, 5):
        for a, b in zip(want[256 * i : 256 * i + 256], decode(data[size * i : size * i + size])):
            error += (a - b) * (a - b)
            power += a * a
    ratio = math.sqrt(error / power)
    if not ratio <= WORST[kind]:
        fail(f"{name}: relative error {ratio:.3f} as {kind}")
    return ratio


def check_bf16(name, want, data):
    # all values at once, as one number of 32 bits for each: no sum of a finite value carries into the next
    n, values = len(want), int.from_bytes(want.tobytes(), "little")
    ones = int.from_bytes(b"\1\0\0\0" * n, "little")
    rounded = (values + 0x7FFF * ones + (values >> 16 & ones)).to_bytes(4 * n + 1, "little")
    if len(data) != 2 * n or data[0::2] != rounded[2 : 4 * n : 4] or data[1::2] != rounded[3 : 4 * n : 4]:
        fail(name + " differs")


# ---- names -------------------------------------------------------------------------------------------------------------

PLAIN = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.o_proj": "attn_output", "self_attn.indexer.wq_b": "indexer.attn_q_b", "self_attn.indexer.wk": "indexer.attn_k",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp", "eh_proj": "nextn.eh_proj",
}
ALWAYS_F32 = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj", "mlp.gate": "ffn_gate_inp", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
    "shared_head.norm": "nextn.shared_head_norm",
}


def expected(src, cfg, recipe):
    """{GGUF name: (ne, wanted type, function that yields the floats)}"""
    out, stacks = {}, {}
    heads, nope, v_dim, lora = (cfg[k] for k in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank"))
    dense, expert = DENSE[recipe], EXPERT[recipe]

    def add(name, hf, kind):
        out[name] = (src.shape(hf)[::-1], kind, lambda: src.floats(hf))

    add("token_embd.weight", "model.embed_tokens.weight", dense)
    add("output.weight", "lm_head.weight", dense)
    add("output_norm.weight", "model.norm.weight", "F32")
    for hf in src.entries:
        m = re.match(r"model\.layers\.(\d+)\.(.*?)(?:\.(weight|bias))?$", hf)
        if not m or hf.endswith("_scale_inv"):
            continue
        blk, rest, end = "blk.%s." % m[1], m[2], m[3]
        x = re.match(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj$", rest)
        if rest in PLAIN:
            add(blk + PLAIN[rest] + ".weight", hf, dense)
        elif rest in ALWAYS_F32:
            add(blk + ALWAYS_F32[rest] + "." + end, hf, "F32")
        elif rest == "mlp.gate.e_score_correction_bias":
            add(blk + "exp_probs_b.bias", hf, "F32")
        elif x:
            stacks.setdefault(blk + "ffn_%s_exps.weight" % x[2], {})[int(x[1])] = hf
        elif rest == "mlp.experts.down_proj":
            add(blk + "ffn_down_exps.weight", hf, expert)
        elif rest == "mlp.experts.gate_up_proj":
            n, rows, cols = src.shape(hf)
            for part, which in enumerate(("gate", "up")):
                def cut(hf=hf, part=part, n=n, size=rows // 2 * cols):
                    v, half_of = src.floats(hf), array.array("f")
                    for e in range(n):
                        half_of.extend(v[(2 * e + part) * size : (2 * e + part + 1) * size])
                    return half_of
                out[blk + f"ffn_{which}_exps.weight"] = ([cols, rows // 2, n], expert, cut)
        elif rest == "self_attn.kv_b_proj":
            def keys(hf=hf):
                v, step, out = src.floats(hf), nope + v_dim, array.array("f")
                for n in range(heads):
                    for c in range(lora):
                        out.extend(v[n * step * lora + c : (n * step + nope) * lora : lora])
                return out

            def values(hf=hf):
                v, step, out = src.floats(hf), nope + v_dim, array.array("f")
                for n in range(heads):
                    out.extend(v[(n * step + nope) * lora : (n + 1) * step * lora])
                return out
            out[blk + "attn_k_b.weight"] = ([nope, lora, heads], dense, keys)
            out[blk + "attn_v_b.weight"] = ([lora, v_dim, heads], dense, values)
        else:
            fail("the generator made a tensor that this check does not know: " + hf)
    for name, parts in stacks.items():
        def join(parts=parts):
            v = array.array("f")
            for e in sorted(parts):
                v.extend(src.floats(parts[e]))
            return v
        out[name] = (src.shape(parts[0])[::-1] + [len(parts)], expert, join)
    return out


def fit(kind, n):
    per = {"F32": 1, "BF16": 1, "Q8_0": 32}.get(kind, 256)
    return kind if n % per == 0 else "Q8_0" if n % 32 == 0 else "BF16"


def check_keys(keys, cfg, n_nextn, recipe):
    full = [t == "full" for t in cfg["indexer_types"]]
    for key, want in {
        "general.architecture": "glm-dsa", "general.alignment": 32 if recipe in ("f32", "bf16") else 4096,
        "glm-dsa.block_count": cfg["num_hidden_layers"] + n_nextn, "glm-dsa.nextn_predict_layers": n_nextn,
        "glm-dsa.context_length": cfg["max_position_embeddings"], "glm-dsa.embedding_length": cfg["hidden_size"],
        "glm-dsa.vocab_size": cfg["vocab_size"], "glm-dsa.feed_forward_length": cfg["intermediate_size"],
        "glm-dsa.attention.head_count": cfg["num_attention_heads"], "glm-dsa.attention.head_count_kv": 1,
        "glm-dsa.attention.key_length": cfg["kv_lora_rank"] + cfg["qk_rope_head_dim"],
        "glm-dsa.attention.value_length": cfg["kv_lora_rank"],
        "glm-dsa.attention.key_length_mla": cfg["qk_nope_head_dim"] + cfg["qk_rope_head_dim"],
        "glm-dsa.attention.value_length_mla": cfg["v_head_dim"], "glm-dsa.attention.q_lora_rank": cfg["q_lora_rank"],
        "glm-dsa.attention.kv_lora_rank": cfg["kv_lora_rank"], "glm-dsa.attention.layer_norm_rms_epsilon": f32(1e-5),
        "glm-dsa.attention.indexer.head_count": cfg["index_n_heads"],
        "glm-dsa.attention.indexer.key_length": cfg["index_head_dim"], "glm-dsa.attention.indexer.top_k": cfg["index_topk"],
        "glm-dsa.attention.indexer.types": full, "glm-dsa.rope.dimension_count": cfg["qk_rope_head_dim"],
        "glm-dsa.rope.freq_base": 8000000.0, "glm-dsa.leading_dense_block_count": cfg["first_k_dense_replace"],
        "glm-dsa.expert_count": cfg["n_routed_experts"], "glm-dsa.expert_used_count": cfg["num_experts_per_tok"],
        "glm-dsa.expert_shared_count": 1, "glm-dsa.expert_feed_forward_length": cfg["moe_intermediate_size"],
        "glm-dsa.expert_group_count": 1, "glm-dsa.expert_group_used_count": 1, "glm-dsa.expert_gating_func": 2,
        "glm-dsa.expert_weights_norm": True, "glm-dsa.expert_weights_scale": 2.5, "general.sampling.temp": 1.0,
        "general.sampling.top_p": f32(0.95),
    }.items():
        if keys.get(key) != want:
            fail(f"key {key} is {keys.get(key)}, {want} expected")
    if "tokenizer.ggml.tokens" not in keys:
        return
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    if len(tokens) != cfg["vocab_size"] or len(types) != cfg["vocab_size"]:
        fail("token arrays have the wrong length")
    if tokens[-1] != "[PAD%d]" % (cfg["vocab_size"] - 1) or types[-1] != 5 or types[0] != 1:
        fail("padding rows of the vocabulary")
    for key, text in {"bos": "[gMASK]", "eos": "<|endoftext|>", "eot": "<|user|>", "eom": "<|observation|>"}.items():
        at = keys["tokenizer.ggml.%s_token_id" % key]
        if tokens[at] != text or types[at] != 3:
            fail(f"{key} token is {tokens[at]}")
    if keys["tokenizer.ggml.eos_token_ids"] != cfg["eos_token_id"] or not keys["tokenizer.ggml.merges"]:
        fail("stop ids or merges")


def main():
    src_dir, path, recipe = sys.argv[1:4]
    with open(os.path.join(src_dir, "config.json"), encoding="utf-8") as f:
        cfg = json.load(f)
    src, model = Source(src_dir), Model(path)
    want = expected(src, cfg, recipe)
    if set(want) != set(model.tensors):
        fail("tensors differ: " + " ".join(sorted(set(want) ^ set(model.tensors))[:6]))
    n_nextn = sum(n.endswith("nextn.eh_proj.weight") for n in want)
    check_keys(model.keys, cfg, n_nextn, recipe)
    worst = {}
    for name, (ne, kind, floats) in want.items():
        found_ne, found, data = model.tensors[name]
        if found_ne != ne or found != fit(kind, ne[0]):
            fail(f"{name}: {found} {found_ne}, {fit(kind, ne[0])} {ne} expected")
        v = floats()
        if found == "F32":
            if v.tobytes() != data:
                fail(name + " differs")
        elif found == "BF16":
            check_bf16(name, v, data)
        elif found == "Q8_0":
            check_q8_0(name, v, data)
        else:
            worst[found] = max(worst.get(found, 0), check_blocks(name, found, v, data))
    print(len(want), "tensors agree", " ".join("%s %.3f" % x for x in worst.items()))


if __name__ == "__main__":
    main()
