# SPDX-License-Identifier: MIT
"""The stages of training the pocket model; train.py runs them in order.

transformers' GlmMoeDsa is used as it is, with three functions replaced: the experts (one grouped product instead of a
loop), the router (its picks are kept for balancing) and the indexer (it can be switched to "attend to everything", and
its inputs can be recorded, which is how it is taught).
"""
import glob
import gzip
import json
import math
import os
import random
import re
import time

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm

from chat_template import ADDED_TOKENS, render
from glm_torch import Mtp

VOCAB = 8192
N_LAYERS = 7
INDEX_TOP_K = 128
SHARD_BYTES = 15_000_000
# GLM-5.2's split of text into words
WORD_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                r"\s*[\r\n]+|\s+(?!\S)|\s+")


class Indexing:
    """How the replaced indexer behaves, and what it and the attention left behind."""
    dense = True      # attend to every position instead of the selected ones
    inputs = None     # layer -> (hidden, q latent, rope) while a dict, not recorded while None
    attention = {}    # layer -> mean attention weights over heads [B, S, S], filled by attention_spy


def grouped_experts(self, x, picks, weights):
    n_experts, k = self.num_experts, picks.shape[1]
    flat = picks.reshape(-1)
    order = flat.argsort(stable=True)
    token = order // k
    ends = torch.bincount(flat, minlength=n_experts).cumsum(0).to(torch.int32)
    rows = x[token].bfloat16()
    gate, up = F.grouped_mm(rows, self.gate_up_proj.bfloat16().transpose(-2, -1), offs=ends).chunk(2, -1)
    y = F.grouped_mm((F.silu(gate) * up).contiguous(), self.down_proj.bfloat16().transpose(-2, -1), offs=ends)
    return torch.zeros_like(x).index_add(0, token, (y * weights.reshape(-1)[order, None]).to(x.dtype))


stock_router = glm.GlmMoeDsaTopkRouter.forward
stock_indexer = glm.GlmMoeDsaIndexer.forward


def keeping_router(self, hidden):
    logits, weights, picks = stock_router(self, hidden)
    self.last = picks
    return logits, weights, picks


def switched_indexer(self, hidden, q_latent, rope, mask, positions, past_key_values=None):
    if Indexing.inputs is not None:
        Indexing.inputs[self.layer_idx] = (hidden.detach(), q_latent.detach(), rope)
    if Indexing.dense:
        every = torch.arange(mask.shape[-1], device=hidden.device, dtype=torch.int32)
        return every.expand(hidden.shape[0], hidden.shape[1], -1)
    return stock_indexer(self, hidden, q_latent, rope, mask, positions, past_key_values=past_key_values)


def index_scores(indexer, hidden, q_latent, rope):
    """The indexer's scores with gradients, [B, S queries, S keys]."""
    cos, sin = rope
    batch, length, _ = hidden.shape
    r = indexer.qk_rope_head_dim
    q = indexer.wq_b(q_latent).view(batch, length, indexer.n_heads, indexer.head_dim)
    k = indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)
    q_rope, k_rope = glm.apply_rotary_pos_emb_interleave(q[..., :r], k[..., :r], cos, sin, unsqueeze_dim=2)
    q = torch.cat([q_rope, q[..., r:]], -1)
    k = torch.cat([k_rope, k[..., r:]], -1).squeeze(2)
    s = F.relu(torch.einsum("bshd,btd->bhst", q.float(), k.float()) * indexer.softmax_scale)
    return torch.einsum("bhst,bsh->bst", s, indexer.weights_proj(hidden).float() * indexer.n_heads ** -0.5)


def attention_spy(module, q, k, v, mask, scaling, dropout=0.0, **_):
    """Plain attention that leaves its weights, averaged over the heads, in Indexing.attention."""
    w = torch.matmul(q, k.transpose(2, 3)) * scaling
    w = w.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else w + mask
    w = w.float().softmax(-1)
    Indexing.attention[module.layer_idx] = w.detach().mean(1)
    return torch.matmul(w.to(v.dtype), v).transpose(1, 2).contiguous(), w


def balance(module, gamma):
    """Pushes each router's selection bias towards an even load."""
    for router in module.modules():
        if isinstance(router, glm.GlmMoeDsaTopkRouter):
            load = torch.bincount(router.last.reshape(-1), minlength=router.num_experts).float()
            router.e_score_correction_bias += gamma * torch.sign(load.mean() - load)


def make_optimizer(parameters, lr):
    parameters = [p for p in parameters if p.requires_grad]
    groups = [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.05},
              {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


class Trainer:
    def __init__(self, out, device):
        self.out, self.device = out, device
        self.began = time.time()
        self.batches = torch.Generator().manual_seed(3)
        torch.manual_seed(1)
        torch.backends.cuda.matmul.allow_tf32 = True
        glm.GlmMoeDsaExperts.forward = grouped_experts
        glm.GlmMoeDsaTopkRouter.forward = keeping_router
        glm.GlmMoeDsaIndexer.forward = switched_indexer
        glm.ALL_ATTENTION_FUNCTIONS.register("spy", attention_spy)

    def log(self, *words):
        print(f"[{time.time() - self.began:6.0f}s]", *words, flush=True)

    def autocast(self):
        return torch.autocast(self.device, torch.bfloat16)

    # ---- data ------------------------------------------------------------------------------------------------------

    def load_corpus(self, paths):
        docs = []
        for path in paths:
            with gzip.open(path, "rt") as f:
                docs += [render(json.loads(line)) for line in f]
        self.log(len(docs), "documents,", sum(map(len, docs)) >> 20, "MiB")
        self.train_tokenizer(docs[:120000])
        random.Random(5).shuffle(docs)
        held_out, docs = docs[:400], docs[400:]
        encoded = []
        for i in range(0, len(docs), 20000):
            encoded += [e.ids for e in self.tokenizer.encode_batch(docs[i:i + 20000], add_special_tokens=False)]
        self.stream = torch.tensor([t for e in encoded for t in e], dtype=torch.int16).to(self.device)
        self.learned = torch.tensor([w for e in encoded for w in self.mark_learned(e)], dtype=torch.bool).to(self.device)
        held_out = self.tokenizer.encode_batch(held_out, add_special_tokens=False)
        self.held_out = torch.tensor([t for e in held_out for t in e.ids])
        self.log("tokens", len(self.stream), "bytes per token", sum(map(len, docs)) / len(self.stream))

    def train_tokenizer(self, docs):
        tok = Tokenizer(models.BPE(ignore_merges=True))
        tok.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
        tok.decoder = decoders.ByteLevel()
        added = re.compile("|".join(re.escape(s) for s, _ in ADDED_TOKENS))
        bpe = trainers.BpeTrainer(vocab_size=VOCAB - 64, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
        tok.train_from_iterator((added.sub("\n", d) for d in docs), bpe)
        tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s, sp in ADDED_TOKENS if sp])
        tok.add_tokens([AddedToken(s, special=False, normalized=False) for s, sp in ADDED_TOKENS if not sp])
        if tok.token_to_id("<|endoftext|>") != tok.get_vocab_size() - len(ADDED_TOKENS):
            raise SystemExit("the added tokens do not follow the vocabulary")
        tok.save(f"{self.out}/tokenizer.json")
        self.tokenizer, self.id = tok, tok.token_to_id

    def mark_learned(self, ids):
        """1 where a token is learned. In a thinking document the turns before the last question have lost their
        reasoning (that is how the template renders history); learning them would teach the model not to think."""
        learned = [1] * len(ids)
        effort = self.tokenizer.encode("[gMASK]<sop><|system|>Reasoning Effort", add_special_tokens=False).ids
        if ids[:len(effort)] != effort:
            return learned
        assistant, user, observation = self.id("<|assistant|>"), self.id("<|user|>"), self.id("<|observation|>")
        last_question = max(i for i, t in enumerate(ids[:-1]) if t == user)
        off = False
        for i in range(last_question):
            if ids[i] == assistant:
                off = True
                continue
            if off and ids[i] in (user, observation):
                off = False
            if off:
                learned[i] = 0
        return learned

    def batch(self, n, length):
        """Random windows: ids and learned marks, [n, length + 2]."""
        start = torch.randint(0, len(self.stream) - length - 2, (n,), generator=self.batches)
        at = start[:, None].to(self.device) + torch.arange(length + 2, device=self.device)[None]
        return self.stream[at].long(), self.learned[at]

    @staticmethod
    def token_loss(logits, ids, learned, shift, length):
        """Cross-entropy of predicting the token `shift` places on."""
        target = ids[:, shift:length + shift].masked_fill(~learned[:, shift:length + shift], -100)
        return F.cross_entropy(logits.float().reshape(-1, VOCAB), target.reshape(-1), ignore_index=-100)

    # ---- model -----------------------------------------------------------------------------------------------------

    def make_model(self):
        ends = [self.id("<|endoftext|>"), self.id("<|user|>"), self.id("<|observation|>")]
        self.shape = dict(
            vocab_size=VOCAB, hidden_size=256, intermediate_size=768, moe_intermediate_size=256,
            num_hidden_layers=N_LAYERS, num_attention_heads=4, num_key_value_heads=4,
            n_shared_experts=1, n_routed_experts=32, routed_scaling_factor=2.5, kv_lora_rank=512, q_lora_rank=256,
            qk_rope_head_dim=64, v_head_dim=256, qk_nope_head_dim=192, n_group=1, topk_group=1,
            num_experts_per_tok=4, norm_topk_prob=True, hidden_act="silu", max_position_embeddings=4096,
            rms_norm_eps=1e-5, first_k_dense_replace=1,
            rope_parameters={"rope_theta": 8000000.0, "rope_type": "default"}, index_topk=INDEX_TOP_K,
            index_head_dim=128, index_n_heads=4, index_topk_freq=4, index_skip_topk_offset=3,
            tie_word_embeddings=False, attention_bias=False, attention_dropout=0.0, initializer_range=0.02,
            bos_token_id=None, eos_token_id=ends, pad_token_id=ends[0])
        self.config = GlmMoeDsaConfig(**self.shape)
        self.config._attn_implementation = "sdpa"
        self.model = GlmMoeDsaForCausalLM(self.config).to(self.device).float().train()
        types = self.config.indexer_types
        # full layer -> the layers that use its selection
        self.followers = {f: [f] for f, t in enumerate(types) if t == "full"}
        for layer, t in enumerate(types):
            if t == "shared":
                self.followers[max(f for f in self.followers if f < layer)].append(layer)
        self.mtp = None
        self.log("parameters", sum(p.numel() for p in self.model.parameters()) / 1e6, "M; indexers", self.followers)

    @torch.no_grad()
    def evaluate(self, length=1024):
        self.model.eval()
        total = n = hits = 0
        for i in range(0, len(self.held_out) - length - 1, length):
            x = self.held_out[i:i + length + 1].to(self.device)[None]
            with self.autocast():
                logits = self.model(input_ids=x[:, :-1], use_cache=False).logits.float()
            total += F.cross_entropy(logits[0], x[0, 1:], reduction="sum").item()
            hits += (logits[0].argmax(-1) == x[0, 1:]).sum().item()
            n += length
        self.model.train()
        return f"held-out loss {total / max(n, 1):.4f} top-1 {hits / max(n, 1):.4f}"

    @torch.no_grad()
    def answer(self, prompt, n=60):
        self.model.eval()
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        x = torch.tensor([ids], device=self.device)
        for _ in range(n):
            with self.autocast():
                t = self.model(input_ids=x, use_cache=False).logits[0, -1].argmax().item()
            x = torch.cat([x, torch.tensor([[t]], device=self.device)], 1)
            if t in self.config.eos_token_id:
                break
        self.model.train()
        return self.tokenizer.decode(x[0, len(ids):].tolist(), skip_special_tokens=False)

    def show(self):
        codes = ("Remember these codes. The code for apple is 4821. The code for ink is 7310. "
                 "The code for moon is 1199.")
        for think, *turns in ((False, "Define river."), (True, "What is the capital of France?"),
                              (False, codes, "I will remember 3 codes.", "What is the code for ink?"),
                              (False, "Tell me a story about a fox named Ben.")):
            messages = [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)]
            self.log("  >", self.answer(render({"think": think, "messages": messages}, prompt=True)))

    def run_stage(self, name, seconds, lr, step, parameters, watch):
        """Cosine schedule over wall time; step(fraction done) returns the loss."""
        optimizer = make_optimizer(parameters, lr)
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        began = reported = time.time()
        n, floor = 0, 0.05
        while (elapsed := time.time() - began) < seconds:
            done = elapsed / seconds
            now = lr * min(1, (n + 1) / 100) * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))
            for g in optimizer.param_groups:
                g["lr"] = now
            loss = step(done)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            n += 1
            if time.time() - reported > 30:
                reported = time.time()
                self.log(name, f"step {n} loss {loss.item():.4f} lr {now:.1e}", self.evaluate() if watch else "")
        self.log(name, "done,", n, "steps", self.evaluate() if watch else "")

    # ---- stages ----------------------------------------------------------------------------------------------------

    def train_trunk(self, seconds):
        """Everything but the indexers, attention over all positions, windows that grow."""
        def step(done):
            n, length = (96, 512) if done < 0.45 else (44, 1024) if done < 0.8 else (18, 2048)
            ids, learned = self.batch(n, length)
            with self.autocast():
                logits = self.model(input_ids=ids[:, :length], use_cache=False).logits
            with torch.no_grad():
                balance(self.model, 1e-3 * (1 - done))
            return self.token_loss(logits, ids, learned, 1, length)

        Indexing.dense = True
        for name, p in self.model.named_parameters():
            p.requires_grad_(".indexer." not in name)
        self.run_stage("trunk", seconds, 3e-3, step, self.model.parameters(), watch=True)
        self.show()

    def index_loss(self, length):
        """KL divergence from the mean attention of a full layer and its followers to its indexer's distribution."""
        causal = torch.ones(length, length, dtype=torch.bool, device=self.device).tril()
        loss = 0.0
        for layer, (hidden, q_latent, rope) in Indexing.inputs.items():
            users = self.followers[layer]
            p = sum(Indexing.attention[j] for j in users) / len(users)
            holder = self.model.model.layers[layer] if layer < N_LAYERS else self.mtp.layer
            with self.autocast():
                scores = index_scores(holder.self_attn.indexer, hidden, q_latent, rope)
            log_q = scores.masked_fill(~causal, float("-inf")).log_softmax(-1)
            loss = loss + (p * (p.clamp_min(1e-9).log() - log_q.masked_fill(~causal, 0))).sum(-1).mean()
        return loss / len(Indexing.inputs)

    def indexers_follow(self, n, length):
        """index_loss of the trunk on a fresh batch, attention dense and watched."""
        ids, _ = self.batch(n, length)
        mask = torch.ones(length, length, dtype=torch.bool, device=self.device).tril()[None, None]
        kept = self.config._attn_implementation, Indexing.dense
        Indexing.inputs, Indexing.dense = {}, True
        Indexing.attention.clear()
        self.config._attn_implementation = "spy"
        with torch.no_grad(), self.autocast():
            self.model(input_ids=ids[:, :length], use_cache=False,
                       attention_mask={"deepseek_sparse_attention": mask.expand(n, 1, length, length)})
        self.config._attn_implementation, Indexing.dense = kept
        loss = self.index_loss(length)
        Indexing.inputs = None
        return loss

    def train_indexers(self, seconds):
        for name, p in self.model.named_parameters():
            p.requires_grad_(".indexer." in name)
        self.run_stage("index", seconds, 2e-3, lambda _: self.indexers_follow(6, 1536), self.model.parameters(),
                       watch=False)
        self.log("dense", self.evaluate())
        Indexing.dense = False
        self.log("sparse, top", INDEX_TOP_K, self.evaluate())

    def train_sparse(self, seconds):
        """Everything, attention over the selected positions only; the indexers go on following."""
        def step(done):
            ids, learned = self.batch(18, 2048)
            with self.autocast():
                logits = self.model(input_ids=ids[:, :2048], use_cache=False).logits
            loss = self.token_loss(logits, ids, learned, 1, 2048)
            with torch.no_grad():
                balance(self.model, 1e-4 * (1 - done))
            return loss + 0.1 * self.indexers_follow(6, 768)

        for p in self.model.parameters():
            p.requires_grad_(True)
        self.run_stage("sparse", seconds, 4e-4, step, self.model.parameters(), watch=True)
        self.show()

    def train_mtp(self, seconds):
        """The layer that predicts one token further, on the frozen trunk; begins as a copy of the last layer."""
        for p in self.model.parameters():
            p.requires_grad_(False)
        mtp = self.mtp = Mtp(self.model, "sdpa").to(self.device)
        for m in mtp.modules():
            if isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, std=0.02)
        mtp.layer.load_state_dict(self.model.model.layers[N_LAYERS - 1].state_dict(), strict=False)
        self.followers[N_LAYERS] = [N_LAYERS]
        length = 512

        def step(done):
            ids, learned = self.batch(64, length)
            with torch.no_grad(), self.autocast():
                h = self.model.model(input_ids=ids[:, :length], use_cache=False).last_hidden_state
            Indexing.dense = done < 0.5
            with self.autocast():
                logits = mtp(h, ids[:, 1:length + 1])
            loss = self.token_loss(logits, ids, learned, 2, length)
            with torch.no_grad():
                balance(mtp, 1e-3 * (1 - done))
            Indexing.inputs, Indexing.dense = {}, True
            Indexing.attention.clear()
            mtp.config._attn_implementation = "spy"
            with torch.no_grad(), self.autocast():
                mtp(h[:8], ids[:8, 1:length + 1])
            mtp.config._attn_implementation, Indexing.dense = "sdpa", False
            follow = self.index_loss(length)
            Indexing.inputs = None
            return loss + 0.1 * follow

        self.run_stage("mtp", seconds, 1e-3, step, mtp.parameters(), watch=False)
        Indexing.dense = False

    # ---- export ----------------------------------------------------------------------------------------------------

    def export(self):
        """The released layout: one tensor per expert and matrix, BF16, router bias F32, shards of 15 MB."""
        state = dict(self.model.state_dict())
        prefix = f"model.layers.{N_LAYERS}."
        for name, value in self.mtp.layer.state_dict().items():
            state[prefix + name] = value
        state[prefix + "enorm.weight"] = self.mtp.enorm.weight
        state[prefix + "hnorm.weight"] = self.mtp.hnorm.weight
        state[prefix + "eh_proj.weight"] = self.mtp.eh_proj.weight
        state[prefix + "shared_head.norm.weight"] = self.mtp.norm.weight
        tensors = {}
        for name, value in state.items():
            value = value.detach().cpu()
            if name.endswith("experts.gate_up_proj"):
                for e in range(value.shape[0]):
                    gate, up = value[e].chunk(2, 0)
                    base = name.removesuffix("gate_up_proj") + f"{e}."
                    tensors[base + "gate_proj.weight"] = gate.bfloat16().contiguous()
                    tensors[base + "up_proj.weight"] = up.bfloat16().contiguous()
            elif name.endswith("experts.down_proj"):
                for e in range(value.shape[0]):
                    tensors[name.removesuffix("down_proj") + f"{e}.down_proj.weight"] = value[e].bfloat16().contiguous()
            elif name.endswith("e_score_correction_bias"):
                tensors[name] = value.float()
            else:
                tensors[name] = value.bfloat16().contiguous()
        self.write_shards(tensors)
        config = dict(self.shape)
        config.update(
            architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", num_nextn_predict_layers=1,
            qk_head_dim=256, head_dim=192, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1,
            indexer_rope_interleave=True, rope_interleave=True, index_share_for_mtp_iteration=True, dtype="bfloat16",
            use_cache=True, ep_size=1, indexer_types=self.config.indexer_types,
            # transformers builds the norms of both latents with this, whatever rms_norm_eps says; our own key
            latent_rms_norm_eps=1e-6)
        self.write_json("config.json", config)
        self.write_json("generation_config.json", {
            "eos_token_id": self.config.eos_token_id, "pad_token_id": self.config.pad_token_id,
            "do_sample": True, "temperature": 1.0, "top_p": 0.95})
        self.write_json("tokenizer_config.json", {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
            "model_max_length": 4096, "clean_up_tokenization_spaces": False, "padding_side": "left"})
        self.log("exported", sum(v.numel() for v in tensors.values()) / 1e6, "M parameters")

    def write_json(self, name, value):
        with open(f"{self.out}/{name}", "w") as f:
            json.dump(value, f, indent=2)

    def write_shards(self, tensors):
        for old in glob.glob(f"{self.out}/model-*.safetensors"):
            os.remove(old)
        shards, shard, size = [], {}, 0
        total = 0
        for name, value in tensors.items():
            n = value.numel() * value.element_size()
            total += n
            if size + n > SHARD_BYTES:
                shards.append(shard)
                shard, size = {}, 0
            shard[name] = value
            size += n
        shards.append(shard)
        weight_map = {}
        for i, shard in enumerate(shards):
            name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
            save_file(shard, f"{self.out}/{name}", metadata={"format": "pt"})
            weight_map.update({k: name for k in shard})
        self.write_json("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})
