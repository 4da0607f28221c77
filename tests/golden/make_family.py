#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Results of Hugging Face transformers for small random checkpoints of GLM-5, 5.1, 5.2 and 5.3.

    make_family.py [NAME ...]        writes tests/data/family/NAME.json and NAME.safetensors

The checkpoints themselves are not kept: gen_checkpoint.py makes the same bytes from the same arguments, which stand in
tests/data/family/members.json, and tests/e2e/logits/family.sh does so again. Needs the packages torch and transformers (PyPI;
5.24.0 and 2.15.0 wrote the files). Everything is computed in float32 on the CPU. transformers has no draft layer: it is
built here of its decoder layer, as section 2.8 of the model's specification says. latent_rms_norm_eps says what transformers
takes for the norms of the two latents, 1e-6; servers take rms_norm_eps.

Both files are as make_golden.py writes them, but for the drafts of a round: all of their logits stand in NAME.mtp_chain_logits
[4][vocab], for prompts below index_topk. A model without a draft layer has none of the mtp parts."""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as modeling

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/family"
LENGTHS = {"one": 1, "short": 9, "below": 60, "above": 70, "long": 200}  # index_topk is 64
GREEDY_TOKENS = 12
DRAFTS = 4

seen = {"router": {}, "selected": {}, "resid": {}}


def record_routers_and_indexers():
    router, indexer = modeling.GlmMoeDsaTopkRouter.forward, modeling.GlmMoeDsaIndexer.forward

    def router_forward(self, x):
        out = router(self, x)
        seen["router"][self.layer] = out[2].detach()
        return out

    def indexer_forward(self, *args, **kwargs):
        out = indexer(self, *args, **kwargs)
        seen["selected"][self.layer_idx] = out.detach()
        return out

    modeling.GlmMoeDsaTopkRouter.forward = router_forward
    modeling.GlmMoeDsaIndexer.forward = indexer_forward


class DraftLayer(torch.nn.Module):
    """Layer num_hidden_layers of the checkpoint, which has an indexer of its own."""

    def __init__(self, folder, model):
        super().__init__()
        c = model.config
        n = c.num_hidden_layers
        config = GlmMoeDsaConfig(**{
            **c.to_dict(), "num_hidden_layers": n + 1, "indexer_types": [*c.indexer_types, "full"],
            "mlp_layer_types": [*c.mlp_layer_types, "sparse"], "layer_types": None})
        config._attn_implementation = "eager"
        self.model = [model]  # a list: its parameters are not this module's
        self.enorm = modeling.GlmMoeDsaRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hnorm = modeling.GlmMoeDsaRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.eh_proj = torch.nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.layer = modeling.GlmMoeDsaDecoderLayer(config, n)
        self.layer.mlp.gate.layer = n
        self.norm = modeling.GlmMoeDsaRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.load_state_dict(self.weights(folder, n, c.n_routed_experts), strict=True)

    @staticmethod
    def weights(folder, layer, experts):
        raw, prefix, out = {}, f"model.layers.{layer}.", {}
        for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
            with safe_open(path, "pt") as f:
                raw.update((k[len(prefix):], f.get_tensor(k).float()) for k in f.keys() if k.startswith(prefix))
        part = {k: [raw.pop(f"mlp.experts.{e}.{k}_proj.weight") for e in range(experts)] for k in ("gate", "up", "down")}
        out["layer.mlp.experts.gate_up_proj"] = torch.stack(
            [torch.cat(pair) for pair in zip(part["gate"], part["up"])])
        out["layer.mlp.experts.down_proj"] = torch.stack(part["down"])
        for k, v in raw.items():
            if k.startswith(("enorm", "hnorm", "eh_proj")):
                out[k] = v
            else:
                out["norm.weight" if k == "shared_head.norm.weight" else "layer." + k] = v
        return out

    def inputs(self, hidden, ids):
        embedding = self.model[0].model.embed_tokens(ids)
        return self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(hidden)], -1))

    def states(self, x):
        n = x.shape[1]
        positions = torch.arange(n)[None]
        rotary = self.model[0].model.rotary_emb(x, position_ids=positions)
        mask = torch.zeros(n, n).masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))[None, None]
        return self.norm(self.layer(x, attention_mask=mask, position_embeddings=rotary, position_ids=positions)[0])

    def logits(self, states):
        return self.model[0].lm_head(states)[0]

    def chain(self, hidden, ids):
        """A round of drafts: each one from the state that the one before left, and from the token that it chose."""
        x, logits, chosen = self.inputs(hidden, ids), [], []
        for _ in range(DRAFTS):
            state = self.states(x)[:, -1:]
            logits.append(self.logits(state)[0])
            chosen.append(int(logits[-1].argmax()))
            x = torch.cat([x, self.inputs(state, torch.tensor([[chosen[-1]]]))], 1)
        return torch.stack(logits), chosen


@torch.no_grad()
def results(folder, has_drafts):
    model = GlmMoeDsaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    c = model.config
    for i, layer in enumerate(model.model.layers):
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.layer = i
        layer.register_forward_hook(lambda m, a, out, i=i: seen["resid"].__setitem__(i, out[0].detach()))
    draft = DraftLayer(folder, model).eval() if has_drafts else None

    def forward(ids):
        for v in seen.values():
            v.clear()
        x = torch.tensor([ids])
        hidden = model.model(input_ids=x, use_cache=False).last_hidden_state
        return x, hidden, model.lm_head(hidden)[0]

    tensors, prompts = {}, {}
    for name, n in LENGTHS.items():
        ids = [random.Random(f"{name} {i}").randrange(c.vocab_size) for i in range(n)]
        x, hidden, logits = forward(ids)
        layers = range(c.num_hidden_layers)
        tensors[f"{name}.logits_last"] = logits[-1]
        tensors[f"{name}.resid_last"] = torch.stack([seen["resid"][i].reshape(-1, c.hidden_size)[-1] for i in layers])
        chosen = [seen["router"][i].sort(-1).values for i in layers if i in seen["router"]]
        tensors[f"{name}.router"] = torch.stack(chosen, 1).to(torch.uint8)
        for i, positions in seen["selected"].items():
            tensors[f"{name}.index_topk_last.{i}"] = positions[0, -1].sort().values.int()
        prompts[name] = {"ids": ids}
        if has_drafts:
            following = torch.cat([x[:, 1:], logits[-1].argmax().view(1, 1)], 1)
            tensors[f"{name}.mtp_logits_last"] = draft.logits(draft.states(draft.inputs(hidden, following)))[-1]
            if n + DRAFTS < c.index_topk:
                tensors[f"{name}.mtp_chain_logits"], prompts[name]["mtp_chain_ids"] = draft.chain(hidden, following)
        text = list(ids)
        while len(text) < n + GREEDY_TOKENS:
            text.append(int(forward(text)[2][-1].argmax()))
        prompts[name]["greedy_ids"] = text[n:]
    return {k: v.contiguous().clone() for k, v in tensors.items()}, prompts


def main():
    members = json.loads((DATA / "members.json").read_text(encoding="utf-8"))
    record_routers_and_indexers()
    for name in sys.argv[1:] or members:
        with tempfile.TemporaryDirectory() as folder:
            arguments = members[name]
            subprocess.run(
                [sys.executable, ROOT / "tests/e2e/convert/gen_checkpoint.py", folder, *arguments], check=True,
                stdout=subprocess.DEVNULL)
            tensors, prompts = results(folder, "--no-mtp" not in arguments)
        save_file(tensors, DATA / f"{name}.safetensors")
        (DATA / f"{name}.json").write_text(json.dumps(prompts) + "\n", encoding="utf-8")
        print(name, os.path.getsize(DATA / f"{name}.safetensors"), "bytes")


if __name__ == "__main__":
    main()
