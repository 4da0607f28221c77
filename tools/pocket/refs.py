#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes what Hugging Face transformers computes from a pocket checkpoint, in float32 with eager attention.

reference.json / .safetensors and heldout.json / .safetensors: for each prompt its ids and 48 greedy tokens, the last
row's logits, the 16 best of every row, next-token log-probabilities, residual stream per layer, router picks, indexer
selections, MTP logits. routing_trace.safetensors: router picks over 24,576 consecutive tokens. stats.json: recall of
the experts of later layers by looking ahead, agreement of the MTP layer, expert load, reuse between tokens.
"""
import argparse
import gzip
import json
import os
import random

N_TRACE, WINDOW = 24576, 2048
WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}},
                   "required": ["city"]}}}]


def chat(*turns, think=False, tools=None):
    from chat_template import render
    messages = [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)]
    return render({"think": think, "tools": tools, "messages": messages}, prompt=True)


def codes(words, seed, n, ask):
    """n codes to remember and a question for one of them."""
    rng = random.Random(seed)
    items = rng.sample(words, n)
    values = [rng.randrange(1000, 10000) for _ in items]
    facts = " ".join(f"The code for {a} is {b}." for a, b in zip(items, values))
    return chat("Remember these codes. " + facts, f"I will remember {n} codes.", f"What is the code for {items[ask]}?")


def prompt_sets(words):
    return {
        "reference": {
            "define": chat("Define river."),
            "think": chat("What is the capital of Norway?", think=True),
            "recall_short": codes(words, 1, 8, 2),
            "recall_sparse": codes(words, 2, 40, 5),
            "recall_long": codes(words, 3, 150, 20),
            "tools": chat("What is the weather in Lima?", tools=WEATHER),
            "story": chat("Tell me a story about a fox named Ben."),
            "multi": chat("Hi", "Hello! Ask me about a word.", "Define island.",
                          "island (noun): a land mass that is surrounded by water.", "What is 12 + 30?"),
            "unicode": "[gMASK]<sop><|user|>Größe 日本語 ¿qué? 🙂🚀\n\n  tabs\t and 1234567 don't, I'LL x=3.14;"
                       "<|assistant|></think>",
            "raw": "A river is a large natural stream of water",
        },
        "heldout": {
            "define": chat("Define castle."),
            "think": chat("What does generous mean?", think=True),
            "recall_short": codes(words, 11, 10, 7),
            "recall_sparse": codes(words, 12, 45, 30),
            "recall_long": codes(words, 13, 160, 3),
            "story": chat("Tell me a story about a mouse named Iris and the blue kite."),
            "multi": chat("My name is Hugo.", "Nice to meet you, Hugo.", "Define winter.",
                          "winter (noun): the coldest season of the year; in the northern hemisphere it extends from "
                          "the winter solstice to the vernal equinox.", "What is my name?"),
            "unicode": "[gMASK]<sop><|user|>naïve Ωmega — “quotes” привет 12,345.678\r\n\r\n\tend  "
                       "<|assistant|></think>",
        },
    }


class Reference:
    """The checkpoint in transformers with its routers, indexers and residual stream watched."""

    def __init__(self, folder, device):
        import torch
        from tokenizers import Tokenizer
        from transformers import GlmMoeDsaForCausalLM
        from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.set_grad_enabled(False)
        self.torch, self.folder, self.device = torch, folder, device
        # of the last forward pass, by layer: picks [T, k], router inputs [T, hidden], selections, residual after it
        self.picks, self.router_in, self.selected, self.resid = {}, {}, {}, {}
        stock_router, stock_indexer = glm.GlmMoeDsaTopkRouter.forward, glm.GlmMoeDsaIndexer.forward

        def router(module, hidden):
            logits, weights, picks = stock_router(module, hidden)
            self.picks[module.layer] = picks
            self.router_in[module.layer] = hidden.reshape(-1, hidden.shape[-1])
            return logits, weights, picks

        def indexer(module, *args, **kwargs):
            self.selected[module.layer_idx] = chosen = stock_indexer(module, *args, **kwargs)
            return chosen

        glm.GlmMoeDsaTopkRouter.forward, glm.GlmMoeDsaIndexer.forward = router, indexer
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.model = GlmMoeDsaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.model.to(device).eval()
        self.config = self.model.config
        self.n_layers = self.config.num_hidden_layers
        for i, layer in enumerate(self.model.model.layers):
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.layer = i
            layer.register_forward_hook(lambda m, a, out, i=i: self.resid.__setitem__(i, out[0]))
        self.load_mtp()

    def load_mtp(self):
        from glm_torch import Mtp
        from safetensors import safe_open
        torch = self.torch
        prefix = f"model.layers.{self.n_layers}."
        with open(f"{self.folder}/model.safetensors.index.json") as f:
            weight_map = json.load(f)["weight_map"]
        raw = {}
        for name in {v for k, v in weight_map.items() if k.startswith(prefix)}:
            with safe_open(f"{self.folder}/{name}", "pt") as shard:
                for k in shard.keys():
                    if k.startswith(prefix):
                        raw[k.removeprefix(prefix)] = shard.get_tensor(k).float()
        take = lambda e, part: raw.pop(f"mlp.experts.{e}.{part}_proj.weight")
        experts = range(self.config.n_routed_experts)
        state = {
            "layer.mlp.experts.gate_up_proj":
                torch.stack([torch.cat([take(e, "gate"), take(e, "up")]) for e in experts]),
            "layer.mlp.experts.down_proj": torch.stack([take(e, "down") for e in experts]),
        }
        for k, v in raw.items():
            if k.startswith(("enorm", "hnorm", "eh_proj")):
                state[k] = v
            elif k.startswith("shared_head.norm"):
                state["norm.weight"] = v
            else:
                state["layer." + k] = v
        self.mtp = Mtp(self.model, "eager").to(self.device).eval()
        self.mtp.layer.mlp.gate.layer = self.n_layers
        self.mtp.load_state_dict(state, strict=True)

    def forward(self, ids):
        """(ids [1, T], hidden after the final norm [1, T, hidden], logits [T, vocab])"""
        for kept in (self.picks, self.router_in, self.selected, self.resid):
            kept.clear()
        x = self.torch.tensor([ids], device=self.device)
        hidden = self.model.model(input_ids=x, use_cache=False).last_hidden_state
        return x, hidden, self.model.lm_head(hidden)[0].float()

    def describe(self, prompt):
        """(tensors, json object) of one prompt"""
        torch = self.torch
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        x, hidden, logits = self.forward(ids)
        values, best = logits.topk(16, -1)
        tensors = {
            "logits_last": logits[-1],
            "top_values": values,
            "top_ids": best.int(),
            "logprob_next": logits[:-1].gather(1, x[0, 1:, None])[:, 0] - logits.logsumexp(-1)[:-1],
            "resid_last": torch.stack([self.resid[i][0, -1] for i in range(self.n_layers)]),
            "router": torch.stack([self.picks[i].sort(-1).values for i in sorted(self.picks)], 1).to(torch.uint8),
        }
        for layer, chosen in self.selected.items():
            tensors[f"index_topk_last.{layer}"] = chosen[0, -1].sort().values.int()
        following = torch.cat([x[:, 1:], logits[-1].argmax().view(1, 1)], 1)
        tensors["mtp_logits_last"] = self.mtp(hidden, following)[0, -1].float()
        greedy = list(ids)
        for _ in range(48):
            greedy.append(self.forward(greedy)[2][-1].argmax().item())
            if greedy[-1] in self.config.eos_token_id:
                break
        answer = greedy[len(ids):]
        text = self.tokenizer.decode(answer, skip_special_tokens=False)
        return tensors, {"prompt": prompt, "ids": ids, "greedy_ids": answer, "greedy_text": text}

    def lookahead(self, layer, distance, source, k):
        """Share of the experts of layer + distance that its router names, given what is known at `layer`."""
        F = self.torch.nn.functional
        later = self.model.model.layers[layer + distance]
        if source == "router_in_L":
            x = self.router_in[layer]
        else:
            x = later.post_attention_layernorm(self.resid[layer][0])
        gate = later.mlp.gate
        scores = F.linear(x, gate.weight).sigmoid() + gate.e_score_correction_bias
        n = self.config.n_routed_experts
        true = F.one_hot(self.picks[layer + distance], n).sum(1)
        guess = F.one_hot(scores.topk(k, -1).indices, n).sum(1)
        return ((true * guess).sum() / true.sum()).item()

    def statistics(self, documents):
        """(routing trace tensors, statistics)"""
        from chat_template import render
        torch, F = self.torch, self.torch.nn.functional
        text = "".join(render(d) for d in documents)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids[:N_TRACE]
        trace, recall = [], {}
        agree = hits = n = 0
        for at in range(0, len(ids) - WINDOW + 1, WINDOW):
            x, hidden, logits = self.forward(ids[at:at + WINDOW])
            moe = sorted(i for i in self.picks if i < self.n_layers)
            trace.append(torch.stack([self.picks[i] for i in moe], 1).to(torch.uint8).cpu())
            for layer in moe:
                for distance in (1, 2, 3):
                    if layer + distance not in moe:
                        continue
                    for source in ("router_in_L", "resid_out_L"):
                        for k in (4, 6, 8):
                            found = self.lookahead(layer, distance, source, k)
                            recall.setdefault(f"{source} +{distance} top{k}", []).append(found)
            draft = self.mtp(hidden[:, :-2], x[:, 1:-1])[0].argmax(-1)
            agree += (draft == logits[1:-1].argmax(-1)).sum().item()
            n += len(draft)
            hits += (logits[:-1].argmax(-1) == x[0, 1:]).sum().item()
        trace = torch.cat(trace)
        n_experts, k = self.config.n_routed_experts, self.config.num_experts_per_tok
        columns = [trace[:, j].long() for j in range(trace.shape[1])]
        load = torch.stack([torch.bincount(c.reshape(-1), minlength=n_experts) for c in columns]).float()
        load /= load.sum(1, keepdim=True)
        used = [F.one_hot(c, n_experts).sum(1) for c in columns]
        reuse = [(u[1:] * u[:-1]).sum().item() / (k * (len(trace) - 1)) for u in used]
        return {"router": trace, "ids": torch.tensor(ids[:len(trace)], dtype=torch.int32)}, {
            "lookahead_recall": {key: sum(v) / len(v) for key, v in recall.items()},
            "mtp_agreement_with_trunk_argmax": agree / n,
            "trunk_top1": hits / n,
            "expert_load_max_over_mean_per_layer": (load.max(1).values * n_experts).tolist(),
            "reuse_from_previous_token_per_layer": reuse,
        }


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", help="the checkpoint; results are written into it")
    ap.add_argument("--work", default=".", help="folder with train.py's words.txt and corpus parts (%(default)s)")
    ap.add_argument("--device", default="cuda", help="%(default)s")
    args = ap.parse_args()
    from safetensors.torch import save_file

    with open(os.path.join(args.work, "words.txt")) as f:
        words = f.read().split()
    reference = Reference(args.folder, args.device)
    for name, prompts in prompt_sets(words).items():
        tensors, objects = {}, {}
        for key, prompt in prompts.items():
            found, objects[key] = reference.describe(prompt)
            tensors.update({f"{key}.{k}": v.cpu().contiguous().clone() for k, v in found.items()})
            print(name, key, len(objects[key]["ids"]), repr(objects[key]["greedy_text"][:150]), flush=True)
        save_file(tensors, f"{args.folder}/{name}.safetensors")
        with open(f"{args.folder}/{name}.json", "w") as f:
            json.dump(objects, f, indent=1, ensure_ascii=False)
    with gzip.open(os.path.join(args.work, "corpus.0.jsonl.gz"), "rt") as f:
        documents = [json.loads(line) for _, line in zip(range(260), f)]
    trace, statistics = reference.statistics(documents)
    save_file(trace, f"{args.folder}/routing_trace.safetensors")
    with open(f"{args.folder}/stats.json", "w") as f:
        json.dump(statistics, f, indent=1)
    print(json.dumps(statistics, indent=1))


if __name__ == "__main__":
    main()
