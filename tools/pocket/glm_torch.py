# SPDX-License-Identifier: MIT
"""What transformers 5.17 lacks for the pocket model: the MTP layer. Shared by training and reference outputs."""
import torch
from torch import nn
from transformers import GlmMoeDsaConfig
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm


class Mtp(nn.Module):
    """The next-token-prediction layer, stored as one more layer after the trunk.

    forward(h, next_ids): h [B, S, hidden] is the trunk's output after its final norm, next_ids [B, S] the token that
    follows each position; returns the logits of the token after that, [B, S, vocab]. Embedding and head are the trunk's.
    """

    def __init__(self, model, attention):
        super().__init__()
        self.trunk = [model]  # in a list: not a submodule, its parameters are not ours
        config = model.config
        d = config.to_dict()
        d.update(num_hidden_layers=config.num_hidden_layers + 1,
                 indexer_types=list(config.indexer_types) + ["full"],
                 mlp_layer_types=list(config.mlp_layer_types) + ["sparse"], layer_types=None)
        d.pop("transformers_version", None)
        self.config = GlmMoeDsaConfig(**d)
        self.config._attn_implementation = attention
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = glm.GlmMoeDsaRMSNorm(hidden, eps)
        self.hnorm = glm.GlmMoeDsaRMSNorm(hidden, eps)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer = glm.GlmMoeDsaDecoderLayer(self.config, config.num_hidden_layers)
        self.norm = glm.GlmMoeDsaRMSNorm(hidden, eps)

    def forward(self, h, next_ids):
        model = self.trunk[0]
        batch, length, _ = h.shape
        x = self.eh_proj(torch.cat([self.enorm(model.model.embed_tokens(next_ids)), self.hnorm(h)], -1))
        positions = torch.arange(length, device=h.device)[None]
        rope = model.model.rotary_emb(x, position_ids=positions)
        mask = torch.ones(length, length, dtype=torch.bool, device=h.device).tril()[None, None]
        if self.config._attn_implementation == "eager":  # which adds the mask
            mask = torch.zeros(mask.shape, device=h.device).masked_fill(~mask, torch.finfo(torch.float32).min)
        else:
            mask = mask.expand(batch, 1, length, length)
        y, _ = self.layer(x, attention_mask=mask, position_embeddings=rope, position_ids=positions)
        return model.lm_head(self.norm(y))
